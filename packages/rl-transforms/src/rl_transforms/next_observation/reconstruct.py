"""Next observations rebuilt from later rows."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import BatchRows, RowSource
from rl_layout import keys as names
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, device_of_data
from rl_tensordict.arguments import check_type
from rl_transforms.entries import missing, required, with_entries
from rl_transforms.transform import Transform


class NextStateReconstructor(Transform):
    """Rebuilds next observations that were not stored, from the observations of later rows.

    The next observation of a row is the observation ``steps_to_next_obs`` (or 1) rows later, if the
    markers prove that row: equal ids, consecutive steps, neither ``is_init`` nor done in between.
    It is read from the sample, otherwise from the buffer's `rl_layout.RowSource`. At done steps and
    cuts there is none: floats are filled with `fill_value`, integers and flags with zeros, and
    ``("collector", "next_missing")`` is True.

    A next observation that is stored and not marked as missing is unchanged: the later row may
    hold other numbers, for example after a running normaliser.

    Args:
        keys: observations to rebuild; ``["observation"]`` by default.
        fill_value: value of floating-point leaves without a proved next observation.

    Raises:
        TypeError: keys are not given as a list.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = trajectories([3, 2])
        >>> compact = batch.exclude(("next", "observation"))
        >>> rebuilt = NextStateReconstructor()(compact)
        >>> rebuilt["collector", "next_missing"]
        tensor([False, False,  True, False,  True])
        >>> torch.equal(rebuilt["next", "observation"][0], batch["next", "observation"][0])
        True
    """

    online = False
    needs_rows = True
    places = frozenset({"buffer"})

    def __init__(
        self, keys: Sequence[NestedKey] = ("observation",), *, fill_value: float = float("nan")
    ) -> None:
        # a tuple of one string means the same as a key and as a list of keys
        super().__init__(list(keys) if isinstance(keys, tuple) and len(keys) == 1 else keys)
        check_type("fill_value", fill_value, Real, "a number")
        self.fill_value = fill_value

    def forward(self, batch: TensorDictBase, source: RowSource | None = None) -> TensorDictBase:
        """Rebuild the next observations of a sample.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.
            source: the rows of the buffer, by their write numbers.

        Returns:
            The rows with ``("next", key)`` for each key, in the dtype of the root's, and bool
            ``("collector", "next_missing")`` ``[*B, T]``.

        Raises:
            KeyError: an observation is missing at the root; or the ids and steps that prove a
                neighbour, with no source alongside the sample, are; or a source is there and
                ``("collector", "row")`` is not.
        """
        to_rebuild = self._rows_to_rebuild(batch)
        if not to_rebuild:
            return batch
        if source is not None and self._has_no_neighbours(batch, to_rebuild):
            return self._from_source(batch, source, list(to_rebuild))
        target, proved = self._neighbours(batch, source)
        # rows [N] that some key lacks and no row of the sample proves
        unresolved = torch.stack(list(to_rebuild.values())).any(0) & ~proved
        fetched, had = _fetch(self, batch, source, unresolved, list(to_rebuild))
        changes: dict[NestedKey, Tensor] = {}
        for key, rows in to_rebuild.items():
            made = self._blank(batch, key, rows)
            own = batch[key].reshape(made.shape)
            made[rows & proved] = own[target[rows & proved]]
            if fetched is not None:
                # of the W fetched rows, the existing ones that this key lacks
                take = had & rows[unresolved]
                made[unresolved.nonzero()[:, 0][take]] = fetched[key][take].to(made.device)
            changes[next_key(key)] = made.reshape(batch[key].shape)
        # missing: unresolved, and not in the buffer either
        gone = unresolved.clone()
        gone[unresolved] = ~had
        changes[names.NEXT_MISSING] = gone.reshape(batch.batch_size)
        return with_entries(batch, changes)

    def _has_no_neighbours(
        self, batch: TensorDictBase, to_rebuild: dict[NestedKey, Tensor]
    ) -> bool:
        """Whether nothing is stored and no row of the sample follows the one before it."""
        if any(batch.get(next_key(key), None) is not None for key in to_rebuild):
            return False
        ids, steps = (batch.get(key, None) for key in (names.TRAJ_IDS, names.TRAJ_STEP))
        if ids is None or steps is None:
            return True
        if batch.get(names.STEPS_TO_NEXT_OBS, None) is not None:
            return False
        ids, steps = ids.reshape(-1), steps.reshape(-1)
        follows = (ids[1:] == ids[:-1]) & (steps[1:] - steps[:-1] == 1)
        return not bool(follows.any())

    def _from_source(
        self, batch: TensorDictBase, source: RowSource, to_rebuild: list[NestedKey]
    ) -> TensorDictBase:
        """Read every next observation from the buffer, the fast path of single rows."""
        fetched, had = _fetch(self, batch, source, None, to_rebuild)
        gone = ~had
        changes: dict[NestedKey, Tensor] = {names.NEXT_MISSING: gone.reshape(batch.batch_size)}
        for key in to_rebuild:
            root = batch[key]
            if fetched is None:
                made = self._blank(batch, key, gone)
            else:
                made = fetched[key].to(root.device, root.dtype)
                mask = gone.to(root.device).view(-1, *[1] * (made.ndim - 1))
                made = made.masked_fill(mask, self._fill_of(root))
            changes[next_key(key)] = made.reshape(root.shape)
        return with_entries(batch, changes)

    def _rows_to_rebuild(self, batch: TensorDictBase) -> dict[NestedKey, Tensor]:
        """Rows whose next observation is to be rebuilt ``[N]``, by key."""
        marked, num_rows = batch.get(names.NEXT_MISSING, None), batch.batch_size.numel()
        to_rebuild: dict[NestedKey, Tensor] = {}
        for key in self.in_keys:
            root = required(self, batch, key)
            if batch.get(next_key(key), None) is None:
                to_rebuild[key] = torch.ones(num_rows, dtype=torch.bool, device=root.device)
            elif marked is not None:
                to_rebuild[key] = marked.reshape(-1)
        return to_rebuild

    def _neighbours(self, batch: TensorDictBase, source: RowSource | None) -> tuple[Tensor, Tensor]:
        """The row of the sample with each row's next observation, and whether it is proved."""
        for key in (names.TRAJ_IDS, names.TRAJ_STEP):
            if batch.get(key, None) is None:
                if source is None:
                    raise missing(self, key, batch)
                num_rows, device = batch.batch_size.numel(), device_of_data(batch)
                no = torch.zeros(num_rows, dtype=torch.bool, device=device)
                return torch.zeros_like(no, dtype=torch.int64), no
        rows = BatchRows(batch)
        far = batch.get(names.STEPS_TO_NEXT_OBS, None)
        target, proved = rows.after(rows.numbers, 1 if far is None else far.reshape(-1))
        return torch.where(proved, target, rows.numbers), proved

    def _fill_of(self, leaf: Tensor) -> float:
        return self.fill_value if leaf.is_floating_point() or leaf.is_complex() else 0

    def _blank(self, batch: TensorDictBase, key: NestedKey, rows: Tensor) -> Tensor:
        """Next observations ``[N, ...]`` as stored, with the rows to be rebuilt filled."""
        root = batch[key]
        shape = (batch.batch_size.numel(), *root.shape[batch.ndim :])
        fill = self._fill_of(root)
        stored = batch.get(next_key(key), None)
        if stored is None:
            blank: Tensor = root.new_full(shape, fill)
            return blank
        made: Tensor = stored.reshape(shape).clone()
        made[rows] = fill
        return made


def _fetch(
    who: Transform,
    batch: TensorDictBase,
    source: RowSource | None,
    unresolved: Tensor | None,
    obs_keys: list[NestedKey],
) -> tuple[TensorDictBase | None, Tensor]:
    """The next observations ``[W]`` of unresolved rows, from the buffer, and which exist."""
    # unresolved: bool [N], None for all rows
    device = batch[obs_keys[0]].device if unresolved is None else unresolved.device
    count = batch.batch_size.numel() if unresolved is None else int(unresolved.sum())
    # [W], in the order of the unresolved rows
    had = torch.zeros(count, dtype=torch.bool, device=device)
    if source is None or not count:
        return None, had
    mine = required(who, batch, names.ROW).reshape(-1)
    mine = mine if unresolved is None else mine[unresolved]
    if batch.get(names.STEPS_TO_NEXT_OBS, None) is None:
        found, had = source.after(mine, 1)
        had = had.to(device)
    else:
        found, distances = mine.clone(), batch[names.STEPS_TO_NEXT_OBS].reshape(-1)
        distances = distances if unresolved is None else distances[unresolved]
        for distance in distances.unique().tolist():  # one query for each, at most n
            there = distances == distance
            after, proved = source.after(mine[there], distance)
            found[there], had[there] = after.to(found.device), proved.to(had.device)
    fetched, stored = source.read(found, obs_keys)
    return fetched, had & stored.to(had.device)
