"""A batch as a dictionary of flat leaves, for work on each leaf separately."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.internals import FIELDS, flat_marker
from rl_tensordict import as_tuple, build, nest, tensors
from rl_tensordict.types import Array

LeafPath = tuple[str, ...]
OWN_ID: LeafPath = (keys.COLLECTOR, "_own_id")
OWN_STEP: LeafPath = (keys.COLLECTOR, "_own_step")
"""Ids and steps given to rows that come without; see `own_ids`."""
_GIVEN = {OWN_ID: keys.TRAJ_IDS, OWN_STEP: keys.TRAJ_STEP}


@dataclass(frozen=True)
class FlatRows:
    """The leaves of a batch, rows first."""

    # A leaf with one number per row is stored as [N], also if it is [N, 1] in the batch: gathering
    # rows of [N, 1] is several times slower.

    leaves: dict[LeafPath, Tensor]  # by key, [N] or [N, ...]
    tails: dict[LeafPath, torch.Size]  # what follows the batch size in the shape of each leaf
    shape: torch.Size  # the batch size, N in all, time last
    device: torch.device | None  # that of the batch, None if it has none

    @classmethod
    def of(cls, batch: TensorDictBase) -> FlatRows:
        """Flatten the leaves of a batch; views if they are contiguous."""
        shape, ndim = batch.batch_size, batch.ndim
        count = shape.numel()
        flat, tails = {}, {}
        for key, leaf in tensors(batch).items():
            tails[key] = tail = leaf.shape[ndim:]
            flat[key] = leaf.reshape(count) if tail.numel() == 1 else leaf.reshape(count, *tail)
        return cls(flat, tails, shape, batch.device)

    def __len__(self) -> int:
        return self.shape.numel()

    def check_markers(self) -> None:
        """Raise for markers of a wrong dtype or shape."""
        for key, dtype, singleton in FIELDS.values():
            path = as_tuple(key)
            leaf = self.leaves.get(path)
            if leaf is not None and (leaf.dtype != dtype or len(self.tails[path]) != singleton):
                as_given = leaf.reshape(*self.shape, *self.tails[path])
                flat_marker(as_given, self.shape, key, dtype, singleton)

    def real(self) -> FlatRows:
        """The real rows, without their mask: a batch ``[K]`` if there is padding."""
        mask, rows = self.leaves.get(keys.MASK), self
        ids = self.leaves[keys.TRAJ_IDS if keys.TRAJ_IDS in self.leaves else OWN_ID]
        is_real = ids != keys.PADDING_ID
        if mask is not None:
            is_real = is_real & mask
            leaves = {key: leaf for key, leaf in self.leaves.items() if key != keys.MASK}
            tails = {key: tail for key, tail in self.tails.items() if key != keys.MASK}
            rows = replace(self, leaves=leaves, tails=tails)
        return rows if bool(is_real.all()) else rows.take(is_real.nonzero()[:, 0])

    def numbered(self) -> FlatRows:
        """The same rows with the ids and steps that were given to them, where they had neither."""
        if OWN_ID not in self.leaves or any(key in self.leaves for key in _GIVEN.values()):
            return self
        leaves = {_GIVEN.get(key, key): leaf for key, leaf in self.leaves.items()}
        tails = {_GIVEN.get(key, key): tail for key, tail in self.tails.items()}
        return replace(self, leaves=leaves, tails=tails)

    def flat(self) -> FlatRows:
        """The same rows as a batch ``[N]``."""
        return replace(self, shape=torch.Size([len(self)]))

    def flagged(self, flags: Iterable[LeafPath]) -> Array:
        """Rows in which one of those flags is set that there are: bool ``[N]``, on the host."""
        found = np.zeros(len(self), dtype=bool)
        for key in flags:
            if key in self.leaves:
                found |= self.leaves[key].cpu().numpy().reshape(-1)
        return found

    def index(self, numbers: Array) -> Tensor:
        """Move an index to the device of the leaves."""
        tensor, leaf = torch.from_numpy(numbers), next(iter(self.leaves.values()))
        return tensor.to(leaf.device) if leaf.is_cuda else tensor

    def take(self, rows: Tensor, shape: torch.Size | None = None) -> FlatRows:
        """Copy some rows, int64 ``[K]``, as a batch ``[K]`` or of another shape."""
        taken = {key: leaf.index_select(0, rows) for key, leaf in self.leaves.items()}
        return replace(self, leaves=taken, shape=rows.shape if shape is None else shape)

    def followed_by(self, others: FlatRows) -> FlatRows:
        """Append rows of the same keys, shapes and dtypes along time."""
        self._check_alike(others)
        shape = torch.Size((*self.shape[:-1], self.shape[-1] + others.shape[-1]))
        joined = {}
        for key, leaf in self.leaves.items():
            if len(shape) == 1:
                joined[key] = torch.cat([leaf, others.leaves[key]])
            else:
                tail = leaf.shape[1:]  # [B * T, ...] -> [B, T, ...], joined to [B, T + T', ...]
                pair = [r.leaves[key].reshape(-1, r.shape[-1], *tail) for r in (self, others)]
                joined[key] = torch.cat(pair, 1).reshape(-1, *tail)
        return replace(others, leaves=joined, shape=shape)

    def batch(self, *, own: bool = False) -> TensorDictBase:
        """The batch of these leaves; `own` keeps the ids that were assigned here."""
        shaped = {}
        for key, leaf in self.leaves.items():
            if key in (OWN_ID, OWN_STEP) and not own:
                continue
            shape = (*self.shape, *self.tails[key])
            shaped[key] = leaf if leaf.shape == shape else leaf.reshape(shape)
        return build(nest(shaped), self.shape, device=self.device)

    def check_environments(self, others: FlatRows) -> None:
        """Raise for rows of another number of environments."""
        if self.shape[:-1] != others.shape[:-1]:
            held, came = list(self.shape[:-1]), list(others.shape[:-1])
            msg = f"expected {held} environments, as in the rows held back: got {came}. "
            msg += "Every environment must give the same number of rows. Call flush first."
            raise ValueError(msg)

    def is_like(self, others: FlatRows) -> bool:
        """Whether other rows have the same keys, shapes and dtypes."""
        return self.tails == others.tails and all(
            leaf.dtype is others.leaves[key].dtype for key, leaf in self.leaves.items()
        )

    def _check_alike(self, others: FlatRows) -> None:
        self.check_environments(others)
        if self.is_like(others):
            return
        held, came = (
            {key: (list(rows.tails[key]), leaf.dtype) for key, leaf in rows.leaves.items()}
            for rows in (self, others)
        )
        odd = {key: (held.get(key), came.get(key)) for key in {**held, **came}}
        named = {key: pair for key, pair in odd.items() if pair[0] != pair[1]}
        msg = f"the rows differ from those held back in keys, shapes or dtypes: {named} "
        raise ValueError(msg + "(held back, came). Call flush first.")
