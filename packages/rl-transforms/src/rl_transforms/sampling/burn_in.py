"""Burn-in of recurrent states over the first rows of slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys, set_recurrent_mode
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_key, as_tuple
from rl_tensordict.arguments import check_whole
from rl_transforms.entries import required, with_entries
from rl_transforms.transform import Keys, Transform

MARKERS = (
    keys.TRAJ_IDS,
    keys.TRAJ_STEP,
    keys.MASK,
    keys.NEXT_DONE,
    keys.NEXT_TERMINATED,
    keys.NEXT_TRUNCATED,
    keys.STEPS_TO_NEXT_OBS,
)


class Module(Protocol):
    """A recurrent module on tensordicts, as those of rl-recurrent are."""

    in_keys: Sequence[NestedKey]
    out_keys: Sequence[NestedKey]
    __call__: Callable[..., Any]


class BurnIn(Transform):
    """Runs recurrent modules without gradient over the first rows of slices, and drops these rows.

    The remaining rows start from the resulting state, not from one stored by older weights.
    Modules run in recurrent mode, from the state stored in the first row of each slice, and must
    write ``("next", state)`` in the last row of each.

    In a flat batch every segment loses its first `burn_in` rows; shorter segments disappear. A
    segment from the start of its trajectory, ``traj_step`` 0, has an exact initial state and loses
    none. A batch ``[*B, T]`` stays rectangular and loses its first columns. Remaining rows are
    marked ``is_init`` where a slice now begins.

    The modules belong to the caller: the transform neither saves nor trains them.

    Args:
        modules: one module or several, run in order.
        burn_in: number of rows, at least 1.
        out_keys: states to pass on, by their keys at the root; by default all states that the
            modules write under ``"next"``.

    Raises:
        TypeError: a module has no ``in_keys`` and ``out_keys``.
        ValueError: `burn_in` is less than 1, or the modules write no state.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> class Count:
        ...     in_keys, out_keys = ["is_init", "count"], [("next", "count")]
        ...     def __call__(self, rows):
        ...         number = rows["is_init"].cumsum(0)  # of the slice
        ...         return rows.set(("next", "count"), rows["count"] + 100 * number)
        >>> rows = trajectories([4, 3], first_step=5)  # two slices, the second from a reset
        >>> rows["count"] = torch.ones(7, 1)
        >>> left = BurnIn(Count(), 2)(rows)
        >>> left["count"].flatten().tolist()
        [101.0, 1.0, 1.0, 1.0, 1.0]
        >>> left["collector", "traj_step"].tolist()
        [7, 8, 0, 1, 2]
    """

    online = False
    places = frozenset({"buffer"})

    def __init__(
        self, modules: Module | Sequence[Module], burn_in: int, out_keys: Keys = None
    ) -> None:
        sequence = tuple(modules) if isinstance(modules, list | tuple) else (modules,)
        for module in sequence:
            if not (
                callable(module) and hasattr(module, "in_keys") and hasattr(module, "out_keys")
            ):
                msg = f"expected a module with in_keys and out_keys, got {type(module).__name__}."
                raise TypeError(f"{msg} Wrap it in a TensorDictModule.")
        check_whole("burn_in", burn_in, 1, " Leave the transform out.")
        written = [as_tuple(key) for module in sequence for key in module.out_keys]
        states = [as_key(key[1:]) for key in written if key[0] == keys.NEXT and len(key) > 1]
        super().__init__(states if out_keys is None else out_keys)
        if not self.in_keys:
            msg = f"the modules write no state under 'next': they write {written}. Pass out_keys."
            raise ValueError(msg)
        self.modules_run, self.burn_in = sequence, burn_in  # a tuple, which torch does not register

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Burn in.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``, with the states that were stored.

        Returns:
            The remaining rows, ``[M]`` or ``[*B, T - burn_in]``; the first row of each slice holds
            the state after the dropped rows. Other entries are unchanged.

        Raises:
            KeyError: a state or an input of a module is missing; or a module wrote no state.
            ValueError: no row would remain.
        """
        for key in self.in_keys:
            required(self, batch, key)
        return self._flat(batch) if batch.ndim == 1 else self._columns(batch)

    def _flat(self, batch: TensorDictBase) -> TensorDictBase:
        segments = Segments.of(batch)
        counts = torch.full_like(segments.lengths, self.burn_in)
        steps = batch.get(keys.TRAJ_STEP, None)
        if steps is not None:
            counts = counts.masked_fill(segments.first(steps) == 0, 0)
        counts = torch.minimum(counts, segments.lengths)  # [S], rows to burn in
        positions = segments.rows - segments.spread(segments.starts)
        is_head = positions < segments.spread(counts)
        heads, rest = segments.rows[is_head], segments.rows[~is_head]
        if not len(rest):
            self._nothing_left(f"slices of at most {segments.max_length} rows")
        begins = (positions == segments.spread(counts))[~is_head]
        changes: dict[NestedKey, Tensor] = {keys.IS_INIT: self._first_steps(batch, rest, begins)}
        left = batch[rest]
        continues = (counts > 0) & (counts < segments.lengths)
        if len(heads):
            states = self._run(batch[heads], (positions == 0)[is_head])
            ends = (counts.cumsum(0) - 1)[continues]  # the last head of each slice that continues
            # the first remaining row of each such slice
            lengths = segments.lengths - counts  # [S], of what remains
            places = (lengths.cumsum(0) - lengths)[continues]
            for key, state in states.items():
                old = left[key]
                changes[key] = old.index_copy(0, places, state[ends].to(old.dtype))
        return with_entries(left, changes)

    def _columns(self, batch: TensorDictBase) -> TensorDictBase:
        burn_in, time = self.burn_in, batch.ndim - 1
        length = batch.shape[-1]
        if length <= burn_in:
            self._nothing_left(f"{length} columns")
        ids = Segments.of(batch).ids
        # [*B], rows where one trajectory spans the cut; padding has id -1
        continues = (ids[..., burn_in] == ids[..., burn_in - 1]) & (ids[..., burn_in] >= 0)
        index = (slice(None),) * time
        head, left = batch[(*index, slice(0, burn_in))], batch[(*index, slice(burn_in, None))]
        stored = left.get(keys.IS_INIT, None)
        blank = torch.zeros(*left.shape, 1, dtype=torch.bool, device=ids.device)
        flag = blank if stored is None else stored.clone()
        flag[..., 0, 0] |= continues
        changes: dict[NestedKey, Tensor] = {keys.IS_INIT: flag}
        for key, state in self._run(head, None).items():
            made = left[key].clone()
            last = state.select(time, burn_in - 1).to(made.dtype)
            made.select(time, 0)[continues] = last[continues]
            changes[key] = made
        return with_entries(left, changes)

    def _run(self, head: TensorDictBase, begins: Tensor | None) -> dict[NestedKey, Tensor]:
        """The states that the modules write under ``"next"``, by their keys at the root."""
        read = [as_tuple(key) for module in self.modules_run for key in module.in_keys]
        rows = head.select(*read, *MARKERS, keys.IS_INIT, strict=False)
        if begins is not None:  # heads of slices are adjacent here, so each start needs its mark
            rows = with_entries(rows, {keys.IS_INIT: begins.unsqueeze(-1)})
        with torch.no_grad(), set_recurrent_mode(True):
            for module in self.modules_run:
                rows = module(rows)
        return {key: required(self, rows, next_key(key)) for key in self.in_keys}

    def _first_steps(self, batch: TensorDictBase, rest: Tensor, begins: Tensor) -> Tensor:
        """``is_init`` ``[M, 1]``: stored first steps, and new starts of slices."""
        stored = batch.get(keys.IS_INIT, None)
        return begins.unsqueeze(-1) if stored is None else stored[rest] | begins.unsqueeze(-1)

    def _nothing_left(self, what: str) -> None:
        msg = f"burn_in={self.burn_in} leaves no row of {what}: sample longer slices."
        raise ValueError(msg)
