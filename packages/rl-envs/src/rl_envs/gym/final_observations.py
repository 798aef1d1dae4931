"""Last observations of episodes that a vector does not give."""

from __future__ import annotations

import warnings

from rl_tensordict.types import Array

SWITCHES = (
    "A switch of the simulator gives them: compute_final_obs=True in Isaac Lab, "
    "capture_terminal_observations=True in mjlab, the wrapper AutoResetWrapper_final_obs in MuJoCo "
    "Playground, autoreset_mode=AutoresetMode.NEXT_STEP if it is one of Gymnasium's."
)


class MissingObservationsWarning(UserWarning):
    """A vector gives no last observations: rows are marked."""


class MissingObservations:
    """Says once that a vector lacks them."""

    def __init__(self, name: str) -> None:
        self._name, self._has_warned = name, False

    def note(self, rows: Array, *, are_marked: bool) -> None:
        """Warn of rows without them, once; raise where they cannot be marked."""
        if are_marked and self._has_warned:
            return
        msg = (
            f"{self._name} resets rows in the same step and gives no 'final_obs' in its info: the "
            f"last observations of rows {rows.tolist()[:8]} are not known. "
        )
        if not are_marked:
            raise RuntimeError(
                f"{msg}Use rollout without a callback, or a collector, which mark such rows. "
                f"{SWITCHES}"
            )
        self._has_warned = True
        warnings.warn(
            f"{msg}Such rows are marked ('collector', 'next_missing') and repeat the observation "
            f"before; estimators and losses leave them out. {SWITCHES}",
            MissingObservationsWarning,
            stacklevel=2,
        )
