"""Whether observations contradict that a row continues the one before it.

Where ids or steps are missing, neighbours along a dimension that is not named ``"time"`` continue
each other only if ``("next", observation)`` of the earlier row and ``observation`` of the later one
are equal bit for bit, where both are stored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.arguments import check_dim
from rl_layout.segments.flat_views import flat_bits, is_plain
from rl_layout.segments.markers import cut_between, must_compare_observations
from rl_tensordict import NestedKey, as_key, find, is_key
from rl_tensordict.arguments import check_collection, shown

warned: set[tuple[NestedKey, ...]] = set()
"""Observations that a warning has named: each is said once. Clear it to hear it again."""

LEAST_PROOF = 8
"""Fewer rows than this prove nothing against a leaf that contradicts them."""

_PROBE = 64  # elements of a long row that are looked at first
_PIECE = 4_194_304  # bytes that are compared at once
_NO_OBSERVATIONS = {
    *keys.DONE_KEYS,
    keys.IS_INIT,
    keys.REWARD,
    "action",
    # what networks make of observations may be made again with other weights
    "state_value",
    "action_value",
    "chosen_action_value",
    "state_action_value",
    "log_prob",
    "action_log_prob",
    "sample_log_prob",
}


@dataclass(frozen=True)
class Comparison:
    """What observations say of the neighbours along one dimension of a batch.

    Attributes:
        contradicts: bool ``[*B, T]``, True at row i where the row after it along the dimension
            holds another observation than ``("next", observation)`` of row i says.
        compared: bool ``[*B, T]``, rows that were compared: no marker cuts after them.
        leaves: root keys of the observations that contradict somewhere.
        dim: the dimension, not negative.

    Example:
        >>> from rl_layout import EndKind
        >>> from rl_layout.synthetic import environments
        >>> batch = environments(3, 4, [9], [EndKind.CUT]).exclude("collector", "is_init")
        >>> batch.names = None
        >>> found = compare_neighbours(batch, 0)
        >>> found.count, int(found.compared.sum()), found.leaves
        (8, 8, ('observation',))
    """

    contradicts: Tensor
    compared: Tensor
    leaves: tuple[NestedKey, ...]
    dim: int

    @cached_property
    def count(self) -> int:
        """Number of rows that the row after contradicts."""
        return int(self.contradicts.sum())

    @cached_property
    def is_rule(self) -> bool:
        """Whether most neighbours contradict, two at least: the dimension is hardly time."""
        return self.count > 1 and 2 * self.count > int(self.compared.sum())

    def warn(self, stacklevel: int = 2) -> None:
        """Warn where contradiction is the rule, once for the same observations.

        Args:
            stacklevel: as of `warnings.warn`, seen from the caller.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> batch = trajectories([2, 3]).exclude("collector", "is_init")
            >>> batch.names = None
            >>> compare_neighbours(batch).warn()  # none contradicts
        """
        if not self.is_rule or self.leaves in warned:
            return
        message = (
            f"{self.count} of {int(self.compared.sum())} neighbours along dimension {self.dim} of "
            f"a batch {list(self.contradicts.shape)} contradict {[*map(str, self.leaves)]}: "
            "('next', observation) of a row is not the observation of the row after it. They are "
            "cut and never joined. Are they rows of several environments? Store "
            "('collector', 'traj_ids') and ('collector', 'traj_step'), or name the time dimension: "
            "names=[..., 'time'] of the tensordict, time_dim= of an estimator, ndim=2 of a storage."
        )
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
        warned.add(self.leaves)  # not where the warning is an error


def contradictions(batch: TensorDictBase, dim: int = -1) -> Tensor | None:
    """Find the rows whose neighbour is contradicted by their observations.

    Observations are the leaves at the root that stand under ``"next"`` too, with equal shape and
    dtype. Flags, rewards, actions, values, log-probabilities and recurrent states are none; nor
    is a leaf that most neighbours contradict where another one, of several elements a row, moves
    on from row to row as told: it was computed anew, as a state or by a running normaliser. A row
    that a marker cuts is not compared, nor one marked ``next_missing`` or done. Rows of n steps
    are compared with the row so many steps further: a contradiction cuts in front of that one.
    Those of them that reach the same row, done or not, are compared with each other too: where
    their next observations differ, the earlier is cut off.

    Args:
        batch: a TED tensordict ``[*B, T]``.
        dim: the dimension that time may lie along.

    Returns:
        bool ``[*B, T]``, True at row i where row i + 1 along the dimension does not continue it;
        None if nothing can be told: `must_compare_observations` is False, or no observation is
        stored both ways.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3]).select("observation", "next")
        >>> batch.names = None
        >>> batch["next", "done"][:] = False
        >>> batch["next", "terminated"][:] = False
        >>> contradictions(batch)
        tensor([False,  True, False, False, False])
    """
    found = compare_neighbours(batch, dim)
    return None if found is None else found.contradicts


def compare_neighbours(batch: TensorDictBase, dim: int = -1) -> Comparison | None:
    """Compare observations along a dimension, as `contradictions` does, and count.

    Args:
        batch: a TED tensordict ``[*B, T]``.
        dim: the dimension that time may lie along.

    Returns:
        What was found; None if nothing can be told.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> compare_neighbours(trajectories([2, 3])) is None  # ids and steps say it all
        True
    """
    check_collection("batch", batch)
    check_dim(dim, batch.batch_size)
    return compare_checked(batch, dim) if must_compare_observations(batch, dim) else None


def compare_checked(batch: TensorDictBase, dim: int = -1) -> Comparison | None:
    """Do the same on a batch whose markers leave it open; arguments are not checked."""
    if batch.batch_size[dim] < 2:
        return None
    leaves = dict(_observations(batch))
    if not leaves:
        return None
    pairs = _Pairs(batch, dim, next(iter(leaves.values()))[0].device)
    if all(pairs.agree(*both) for both in leaves.values()):
        return Comparison(torch.zeros_like(pairs.compared), pairs.compared, (), dim % batch.ndim)
    differs = {key: _differing(pairs, *both) for key, both in leaves.items()}
    for key in _derived(pairs, leaves, differs):
        del differs[key], leaves[key]
    apart = {key: _apart(pairs, after) for key, (_, after) in leaves.items()}
    named = tuple(key for key in leaves if bool(differs[key].any() | apart[key].any()))
    if not named:
        return Comparison(torch.zeros_like(pairs.compared), pairs.compared, (), dim % batch.ndim)
    wrong = torch.zeros_like(pairs.row, dtype=torch.bool)
    parted = torch.zeros_like(pairs.earlier, dtype=torch.bool)
    for key in named:
        wrong |= differs[key]
        parted |= apart[key]
    return Comparison(pairs.marked(wrong, parted), pairs.compared, named, dim % batch.ndim)


class _Pairs:
    """The rows to compare, each with the row that its next observation belongs to."""

    # Rows are numbered over the flattened batch.

    def __init__(self, batch: TensorDictBase, dim: int, device: torch.device) -> None:
        self._dim, self._shape, self._device = dim % batch.ndim, batch.batch_size, device
        missing = self._flag(batch, keys.NEXT_MISSING)
        flags = [
            flag for key in keys.NEXT_DONE_KEYS if (flag := self._flag(batch, key, 1)) is not None
        ]
        self._ahead = ahead = self._marker(batch, keys.STEPS_TO_NEXT_OBS, 1)
        near = flags if ahead is None else [flag & (ahead == 1) for flag in flags]
        cut = self._cuts(batch, near, device)
        if ahead is None:
            where = ~cut
        else:
            step = torch.arange(cut.shape[-1], device=device).expand(cut.shape)
            target = step + ahead
            where = (target > step) & (target < cut.shape[-1])
            piece = torch.nn.functional.pad(cut.cumsum(-1), (1, 0))[..., :-1]
            where &= piece == piece.gather(-1, self._target)
        for flag in (*flags, *([] if missing is None else [missing])):
            where &= ~flag
        self._where, self._twins = where, _find_twins(cut, ahead, missing)
        told = where.clone(memory_format=torch.contiguous_format)
        told.view(-1)[self._twins[0]] = True
        self.compared = told.movedim(-1, dim)

    def agree(self, root: Tensor, after: Tensor) -> bool:
        """Whether no pair of rows one step apart differs, as far as a quick look tells."""
        rows = self._shape.numel()
        if self._ahead is not None or root.numel() > 2 * _PROBE * rows:
            return False
        flat = (flat_bits(leaf, rows) for leaf in (after, root))
        here, following = (  # [..., T, F]
            leaf.view(*self._shape, leaf.shape[1]).movedim(self._dim, -2) for leaf in flat
        )
        differs = here[..., :-1, :] != following[..., 1:, :]
        # one any() over all: along the few elements of a row it takes ten times as long
        return not bool(differs.logical_and_(self._where[..., :-1, None]).any())

    @cached_property
    def _numbers(self) -> Tensor:
        numbers = torch.arange(self._shape.numel(), device=self._device).view(self._shape)
        return numbers.movedim(self._dim, -1)

    @cached_property
    def _target(self) -> Tensor:
        """The row that a next observation belongs to, by its place in time; the last for none."""
        length = self._shape[self._dim]
        step = torch.arange(length, device=self._device).expand(self._numbers.shape)
        return (step + (1 if self._ahead is None else self._ahead)).clamp(1, length - 1)

    @cached_property
    def row(self) -> Tensor:
        return self._numbers[self._where]

    @cached_property
    def other(self) -> Tensor:
        return self._numbers.gather(-1, self._target)[self._where]

    @cached_property
    def earlier(self) -> Tensor:
        """Rows that reach the same row as a later one does."""
        return self._numbers.reshape(-1)[self._twins[0]]

    @cached_property
    def later(self) -> Tensor:
        return self._numbers.reshape(-1)[self._twins[1]]

    def marked(self, wrong: Tensor, parted: Tensor) -> Tensor:
        """The rows after which to cut, bool ``[*B, T]``; at none of them a marker cuts already."""
        cut = torch.zeros(self._shape, dtype=torch.bool, device=wrong.device)
        flat = cut.view(-1)
        flat[self.earlier[parted]] = True
        if self._ahead is not None:
            # rows that are cut off from the one that they reach say no more of it
            parts = cut.movedim(self._dim, -1).int()
            so_far = parts.cumsum(-1)
            between = so_far.gather(-1, self._target - 1) != so_far - parts
            wrong = wrong & ~between[self._where]
        before = self._numbers.gather(-1, self._target - 1)[self._where]
        flat[before[wrong]] = True
        # rows of n steps that all reach up to a cut have the same target: it is after the last
        alone = torch.ones(self._where.shape, dtype=torch.bool, device=wrong.device)
        alone.view(-1)[self._twins[0]] = False
        flat[self.row[wrong & alone[self._where]]] = True
        return cut

    def _cuts(self, batch: TensorDictBase, ends: list[Tensor], device: torch.device) -> Tensor:
        """Rows after which a marker cuts, bool ``[*B, T]`` with the dimension last."""
        cut = torch.zeros(self._shape, dtype=torch.bool, device=device).movedim(self._dim, -1)
        ids, mask = self._marker(batch, keys.TRAJ_IDS), self._flag(batch, keys.MASK)
        cut_between(
            cut[..., :-1],
            ((..., slice(None, -1)), (..., slice(1, None))),
            alike=() if ids is None else (ids,),
            step=self._marker(batch, keys.TRAJ_STEP),
            is_init=self._flag(batch, keys.IS_INIT, 1),
            ends=ends,
        )
        if mask is not None:  # padding continues nothing, no other padding either
            cut[..., :-1] |= ~(mask[..., 1:] & mask[..., :-1])
        cut[..., -1].fill_(True)  # `= True` would copy from the CPU, and wait
        return cut

    def _marker(self, batch: TensorDictBase, key: NestedKey, *trailing: int) -> Tensor | None:
        value: Tensor | None = find(batch, keys.as_tuple(key))
        if value is None or value.shape != (*self._shape, *trailing):
            return None
        return value.reshape(self._shape).movedim(self._dim, -1)

    def _flag(self, batch: TensorDictBase, key: NestedKey, *trailing: int) -> Tensor | None:
        value = self._marker(batch, key, *trailing)
        return value if value is not None and value.dtype == torch.bool else None


def _find_twins(cut: Tensor, ahead: Tensor | None, missing: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows that reach the same row as the next one of their piece that does so, and those."""
    # Rows are numbered over the flattened markers [..., T], time last, where a piece ends in cut
    if ahead is None:
        none = torch.zeros(0, dtype=torch.int64, device=cut.device)
        return none, none
    known = (ahead > 0) if missing is None else (ahead > 0) & ~missing
    (row,) = known.reshape(-1).nonzero(as_tuple=True)
    piece = cut.reshape(-1).cumsum(0) - cut.reshape(-1).int()
    target = row + ahead.reshape(-1)[row]
    if bool((target[1:] < target[:-1]).any()):  # in the order of the rows that they reach
        target, order = torch.sort(target, stable=True)
        row = row[order]
    same = (target[1:] == target[:-1]) & (piece[row[1:]] == piece[row[:-1]])
    return row[:-1][same], row[1:][same]


def _observations(batch: TensorDictBase) -> Iterator[tuple[NestedKey, tuple[Tensor, Tensor]]]:
    """Leaves at the root with an equal twin under ``"next"``: key, observation, next one."""
    for key in batch.keys(include_nested=True, leaves_only=True):
        parts = keys.as_tuple(key)
        if parts[0] in (keys.NEXT, keys.COLLECTOR) or not is_observed(parts):
            continue
        root, after = _entry(batch, parts), _entry(batch, keys.next_key(parts))
        if not is_plain(root) or not is_plain(after):
            continue
        if root.dtype == after.dtype and root.shape == after.shape:
            yield as_key(parts), (root, after)


def _entry(batch: TensorDictBase, key: tuple[str, ...]) -> object:
    """An entry, or None if it is missing or its rows differ in shape."""
    try:
        return find(batch, key)
    except (KeyError, ValueError, RuntimeError):  # another tree under "next", or a ragged stack
        return None


def is_observed(key: tuple[str, ...]) -> bool:
    """Tell whether a name is that of an observation: no flag, reward, action, value or state.

    Args:
        key: a root key as a tuple of strings.

    Example:
        >>> is_observed(("agents", "observation")), is_observed(("agents", "done"))
        (True, False)
    """
    if not isinstance(key, tuple) or not is_key(key):
        msg = f"key: expected a tuple of strings, got {shown(key)}."
        raise TypeError(msg)
    made = any("recurrent_state" in part or "hidden" in part for part in key)
    return not made and key[-1] not in _NO_OBSERVATIONS


def _differing(pairs: _Pairs, root: Tensor, after: Tensor) -> Tensor:
    """Pairs whose later row holds another observation than the earlier one says, bool ``[P]``."""
    rows = pairs.compared.numel()
    here, following = flat_bits(after, rows), flat_bits(root, rows)
    return _unequal(here, following, pairs.row, pairs.other)


def _apart(pairs: _Pairs, after: Tensor) -> Tensor:
    """Rows that reach the same row as a later one and say another observation of it."""
    said = flat_bits(after, pairs.compared.numel())
    return _unequal(said, said, pairs.earlier, pairs.later)


def _unequal(left: Tensor, right: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Whether rows i of one leaf ``[N, F]`` and j of another differ, bool ``[P]``."""
    width = left.shape[1]
    if width > 2 * _PROBE:  # a few elements tell most rows of other trajectories
        some = slice(None, None, width // _PROBE)
        found = _unequal_whole(left[:, some], right[:, some], i, j)
        rest = (~found).nonzero()[:, 0]
        found[rest] = _unequal_whole(left, right, i[rest], j[rest])
        return found
    return _unequal_whole(left, right, i, j)


def _unequal_whole(left: Tensor, right: Tensor, i: Tensor, j: Tensor) -> Tensor:
    found = torch.zeros(len(i), dtype=torch.bool, device=left.device)
    size = max(1, _PIECE // max(1, left.shape[1] * left.element_size()))
    for first in range(0, len(i), size):
        here = slice(first, first + size)
        one, other = left.index_select(0, i[here]), right.index_select(0, j[here])
        found[here] = (one != other).any(1)
    return found


def _derived(
    pairs: _Pairs, leaves: dict[NestedKey, tuple[Tensor, Tensor]], differs: dict[NestedKey, Tensor]
) -> list[NestedKey]:
    """Leaves that were computed anew: most pairs contradict them, and another leaf proves most."""
    often = [key for key, where in differs.items() if 2 * int(where.sum()) > len(where)]
    others = [key for key in differs if key not in often]
    if often and any(_proves(pairs, *leaves[key], differs[key]) for key in others):
        return often
    return []


def _proves(pairs: _Pairs, root: Tensor, after: Tensor, differs: Tensor) -> bool:
    """Whether a leaf moves on from row to row as told, by values found in one row only."""
    rows = pairs.compared.numel()
    here, following = flat_bits(root, rows), flat_bits(after, rows)
    if here.shape[1] < 2:  # counters of several environments may follow each other
        return False
    names = torch.unique(_fingerprints(here), return_inverse=True, return_counts=True)
    alone = (names[2] == 1)[names[1]]
    moved = _unequal(here, following, pairs.row, pairs.row)
    proved = int((moved & ~differs & alone[pairs.other]).sum())
    return proved >= LEAST_PROOF and 2 * proved > len(differs)


def _fingerprints(values: Tensor) -> Tensor:
    """A number for each row of bits ``[N, F]``, other for other rows but by a rare chance."""
    generator, shape = torch.Generator().manual_seed(0), values.shape[1:]
    weights = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator, device="cpu")
    weights = weights.to(values.device)
    size = max(1, _PIECE // (8 * math.prod(values.shape[1:])))
    parts = [(part.to(torch.int64) * weights).sum(1) for part in values.split(size)]
    return torch.cat(parts)
