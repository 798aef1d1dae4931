"""Keeping some entries."""

from __future__ import annotations

from collections.abc import Iterable

from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_specs import Composite
from rl_tensordict import NestedKey, as_key, as_tuple, leaves
from rl_transforms.entries import missing, without_entries
from rl_transforms.transform import Transform, without_specs

# a buffer and an environment cannot do without these, whatever a user selects
_NEEDED_NAMES = {"action", "_reset", keys.IS_INIT, keys.STEPS_TO_NEXT_OBS[-1]}
_NEEDED_NAMES |= {keys.INDEX, keys.PRIORITY_WEIGHT, keys.SHIFTED_VALID}


class SelectTransform(Transform):
    """Keeps some entries and drops the others, at the root and under ``"next"``.

    Actions, markers and what a sampler adds are always kept.

    Args:
        *selected_keys: leaves or groups to keep.
        keep_rewards: keep rewards too: leaves named ``"reward"``, or those of the reward spec.
        keep_dones: keep done flags too.

    Raises:
        TypeError: a key is neither a string nor a tuple of strings.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = SelectTransform("observation", keep_dones=False)(trajectories([3]))
        >>> sorted(batch["next"].keys())
        ['observation', 'reward']
    """

    def __init__(
        self, *selected_keys: NestedKey, keep_rewards: bool = True, keep_dones: bool = True
    ) -> None:
        super().__init__([as_key(as_tuple(key)) for key in selected_keys])
        self.keep_rewards = keep_rewards
        self.keep_dones = keep_dones
        self._rewards: set[tuple[str, ...]] = set()
        self._verdicts: dict[tuple[str, ...], bool] = {}

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Select entries of sampled or rolled-out rows.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The rows with fewer entries.

        Raises:
            KeyError: a selected key is neither at the root nor under ``"next"``.
        """
        for key in self.in_keys:
            if batch.get(key, None) is None and batch.get(next_key(key), None) is None:
                raise missing(self, key, batch)
        return self._selected(batch)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Select entries of what a reset returned."""
        return self._selected(root)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Select entries of what a step returned."""
        for key in self.in_keys:
            if after.get(key, None) is None and root.get(key, None) is None:
                raise missing(self, key, after)
        return self._selected(after)

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Describe the observations that are kept."""
        return self._kept(spec)

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Describe the rewards that are kept, and remember their names."""
        if self.keep_rewards:
            # verdicts without the spec were by the name "reward"
            self._rewards, self._verdicts = set(_spec_leaves(spec)), {}
        return self._kept(spec)

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Describe the done flags that are kept.

        Raises:
            ValueError: none is, and an environment needs one.
        """
        gone = [key for key in _spec_leaves(spec) if not self.keeps(key)]
        if gone and len(gone) == len(list(_spec_leaves(spec))):
            msg = f"an environment needs a done flag of {gone}: select one, or keep_dones=True."
            raise ValueError(msg)
        return self._kept(spec)

    def _kept(self, spec: Composite) -> Composite:
        gone = [key for key in _spec_leaves(spec) if not self.keeps(key)]
        return without_specs(spec, gone) if gone else spec

    def _selected(self, batch: TensorDictBase) -> TensorDictBase:
        gone = [key for key, _ in leaves(batch) if not self.keeps(key)]
        return without_entries(batch, gone) if gone else batch

    def keeps(self, key: tuple[str, ...]) -> bool:
        """Whether an entry is kept; its key is the full path, ``"next"`` included."""
        # asked for every leaf at every step
        if key not in self._verdicts:
            self._verdicts[key] = self._decide(key)
        return self._verdicts[key]

    def _decide(self, key: tuple[str, ...]) -> bool:
        key = as_tuple(key)
        # the key without "next": a selected key keeps both sides of a step
        inner = key[1:] if key[0] == keys.NEXT and len(key) > 1 else key
        selected = (as_tuple(chosen) for chosen in self.in_keys)
        if any(chosen in (key[: len(chosen)], inner[: len(chosen)]) for chosen in selected):
            return True
        if inner[0] == keys.COLLECTOR or inner[-1] in _NEEDED_NAMES:
            return True
        is_reward = inner in self._rewards if self._rewards else inner[-1] == keys.REWARD
        is_done = inner[-1] in keys.DONE_KEYS
        return (is_reward and self.keep_rewards) or (is_done and self.keep_dones)


def _spec_leaves(spec: Composite) -> Iterable[tuple[str, ...]]:
    return [as_tuple(key) for key in spec.keys(include_nested=True, leaves_only=True)]
