"""The slices of a sample: their number and length, their places in it, and their markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, is_tensor_collection

from rl_layout import keys
from rl_replay.trajectories.index import even_length
from rl_slabs.internals import positive
from rl_tensordict import CPU, NestedKey, UnfitValue, as_key, as_tuple, find, insert
from rl_tensordict.types import Flags, Ints

SliceSpan = bool | int | tuple[bool | int, bool | int]
TERMINATIONS = frozenset({keys.TERMINATED, "terminal", "terminals"})  # names of columns of ends
TRUNCATIONS = frozenset({keys.TRUNCATED, "timeout", "timeouts"})


@dataclass(frozen=True)
class SliceShape:
    """How a batch is cut into slices; at least one of the two is given."""

    num_slices: int | None = None  # Slices of a batch
    slice_len: int | None = None  # Rows of a slice

    def __post_init__(self) -> None:
        both = {"num_slices": self.num_slices, "slice_len": self.slice_len}
        if not [positive(value, name) for name, value in both.items() if value is not None]:
            raise TypeError("a slice sampler needs num_slices, slice_len, or both: got neither.")

    def of(self, batch_size: int) -> tuple[int, int]:
        """The slices of a batch, and the rows of each."""
        count, length = self.num_slices, self.slice_len
        if count is not None and length is not None:
            if count * length != batch_size:
                raise ValueError(
                    f"{count} slices of {length} rows make a batch of {count * length}, not of "
                    f"{batch_size}. Ask for that batch size, or leave out num_slices or slice_len."
                )
            return count, length
        part, name = (count, "num_slices") if count is not None else (length, "slice_len")
        assert part is not None  # one of the two is given
        if batch_size < 1 or batch_size % part:
            raise UnfitValue(
                f"the batch size must be a multiple of {name}: got {batch_size} and {part}. Use "
                f"{max(batch_size // part, 1) * part}."
            )
        other = batch_size // part
        return (part, other) if count is not None else (other, part)


@dataclass(frozen=True)
class SpanLimits:
    """How many rows of a slice may be outside its trajectory; those are cut off."""

    left: int = 0  # Before the first row
    right: int = 0  # After the last row

    @classmethod
    def of(cls, span: SliceSpan, slice_len: int) -> Self:
        """The limits that the argument `span` of a slice sampler sets."""
        if not span and not isinstance(span, tuple):
            return cls()
        pair = span if isinstance(span, tuple) else (span, span)
        if len(pair) != 2 or not all(isinstance(side, int) for side in pair):
            raise TypeError(f"span is a bool, an integer or a pair of such: got {span!r}.")
        sides = [(slice_len - 1) if side is True else int(side) for side in pair]
        if min(sides) < 0 or max(sides) >= slice_len:
            raise ValueError(
                f"span must be in [0, {slice_len}), so that one row of {slice_len} is left: got "
                f"{span!r}."
            )
        return cls(*sides)


@dataclass(frozen=True)
class Slices:
    """The slices of a sample, laid end to end; a padded one ends in copies of its last row."""

    lengths: Ints  # int64 [S], real rows of each
    padded_to: int | None = None  # Rows of each with its padding; None if there is none
    probabilities: NDArray[np.float64] | None = None  # [S], if they were drawn by priority

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def rows(self) -> int:
        """Rows of the sample, padding among them."""
        each = self._each
        return int(self.lengths.sum()) if each is None else each * len(self)

    @cached_property
    def starts(self) -> Ints:
        """The first row of each, int64 `[S]`."""
        each = self._each
        if each is not None:
            return _even(len(self), each).starts.copy()
        starts: Ints = self.lengths.cumsum() - self.lengths
        return starts

    @property
    def lasts(self) -> Ints:
        """The last real row of each, int64 `[S]`."""
        if self.padded_to is None and self._each is not None:
            return _even(len(self), self._each).lasts.copy()
        lasts: Ints = self.starts + self.lengths - 1
        return lasts

    @property
    def ids(self) -> Ints:
        """The slice of each row, int64 `[rows]`, a new array every time."""
        each = self._each
        if each is None:
            return np.arange(len(self)).repeat(self.lengths)
        return _even(len(self), each).ids.copy()

    @cached_property
    def _each(self) -> int | None:
        """Rows of each slice in the sample; None if they differ."""
        return even_length(self.lengths) if self.padded_to is None else self.padded_to

    @cached_property
    def mask(self) -> Flags:
        """Which rows are no padding, bool `[rows]`."""
        if self.padded_to is None:
            return np.ones(self.rows, dtype=np.bool_)
        mask: Flags = (np.arange(self.padded_to) < self.lengths[:, None]).reshape(-1)
        return mask

    def pad(self, values: Ints, length: int) -> tuple[Ints, Slices]:
        """Lay every slice out to the same length, repeating its last value."""
        places = np.minimum(np.arange(length), self.lengths[:, None] - 1) + self.starts[:, None]
        return values.take(places.reshape(-1)), Slices(self.lengths, length)

    def proved(self, numbers: Ints, back: NDArray[np.integer]) -> Flags:
        """Which slices are runs of rows that each continue the one before, bool `[S]`."""
        # The index may change while a reader of another process uses it. So the reader checks the
        # links after it has gathered the rows, and that their row ids are still live.
        joined = np.ones(len(numbers), dtype=np.bool_)
        distances = np.diff(numbers)
        # a torn table may repeat one row, and that row may have no predecessor
        joined[1:] = (back[1:] == distances) & (distances > 0)
        joined |= ~self.mask
        joined[self.starts] = True
        return np.logical_and.reduceat(joined, self.starts)

    def rows_of(self, chosen: Flags) -> Flags:
        """The rows of some slices, bool `[rows]`."""
        rows: Flags = chosen[self.ids]
        return rows

    def only(self, chosen: Flags) -> Self:
        """The chosen slices alone, laid end to end."""
        drawn = self.probabilities
        return type(self)(
            self.lengths[chosen], self.padded_to, None if drawn is None else drawn[chosen]
        )

    def and_then(self, other: Self) -> Self:
        """These slices and those of another sample after them."""
        drawn = None
        if self.probabilities is not None and other.probabilities is not None:
            drawn = np.concatenate((self.probabilities, other.probabilities))
        lengths = np.concatenate((self.lengths, other.lengths))
        return type(self)(lengths, self.padded_to, drawn)


class _Even(NamedTuple):
    """The places of slices of one length, cached; callers get copies."""

    starts: Ints
    lasts: Ints
    ids: Ints


@lru_cache(maxsize=16)
def _even(count: int, each: int) -> _Even:
    starts = np.arange(0, count * each, each)
    return _Even(starts, starts + each - 1, np.arange(count).repeat(each))


def mark_slices(
    sample: TensorDict,
    slices: Slices,
    truncated_key: NestedKey | None = keys.NEXT_TRUNCATED,
    end_keys: Sequence[NestedKey] = (),
) -> None:
    """Mark, in a sample, where its slices begin and end.

    - `is_init`: True at the first row of each slice, alongside the resets that are stored.
    - `truncated_key`: True at the last row of each, unless it is terminated; the done flag is
      True there in any case. Flags that the rows lack are added: done alone is a termination. So
      is an end that only `end_keys` mark, unless its column is named like a truncation.
    - `("collector", "slice_ids")`: the number of the slice in the sample.
    - Where slices are padded, `("collector", "mask")` is False on padding, and ids and row numbers
      are -1 there.

    Stored ids, steps and terminations stay as they are.

    Args:
        sample: Copies of the rows `[N]`, on any device; changed in place.
        slices: Where the slices are in it.
        truncated_key: None leaves the flags of ends as they are stored.
        end_keys: Further columns of ends, for flags that the rows lack.

    Raises:
        TypeError: `sample` or `slices` is of another kind, or a flag is not bool.
        ValueError: Flags of a row differ in number.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> sample = trajectories([5])
        >>> mark_slices(sample, Slices(np.array([3, 2])))
        >>> sample["is_init"].flatten().tolist(), sample["next", "truncated"].flatten().tolist()
        ([True, False, False, True, False], [False, False, True, False, False])
    """
    if not (is_tensor_collection(sample) and isinstance(slices, Slices)):
        raise TypeError(
            "mark_slices takes a tensordict and Slices, got "
            f"{type(sample).__name__} and {type(slices).__name__}: use Slices(lengths)."
        )
    firsts = find(sample, (keys.IS_INIT,))
    if firsts is None:
        firsts = _new_flags(sample)
        insert(sample, (keys.IS_INIT,), firsts)
    else:
        _require_bool((keys.IS_INIT,), firsts)
    _set(firsts, slices.starts)
    insert(sample, keys.SLICE_IDS, _like(firsts, slices.ids))
    if truncated_key is not None:
        key = truncated_key if isinstance(truncated_key, tuple) else as_tuple(truncated_key)
        _mark_ends(sample, key, slices.lasts, end_keys)
    if slices.padded_to is not None:
        _mark_padding(sample, slices)


def _mark_ends(
    sample: TensorDict, key: tuple[str, ...], lasts: Ints, end_keys: Sequence[NestedKey]
) -> None:
    paths = ((*key[:-1], keys.DONE), (*key[:-1], keys.TERMINATED), key)
    found = [find(sample, path) for path in paths]
    for path, flag in zip(paths, found, strict=True):
        if flag is not None:
            _require_bool(path, flag)
    alike = _of_one_shape(paths, found)
    done, terminated, truncated = _complete(sample, paths, alike, end_keys)
    if done.is_cpu:
        cut = truncated.numpy()
        cut[lasts] |= ~terminated.numpy()[lasts]
        done.numpy()[lasts] = True
        return
    rows = _like(done, lasts)
    truncated[rows] |= ~terminated[rows]
    done[rows] = True


def _require_bool(path: tuple[str, ...], flag: torch.Tensor) -> None:
    if flag.dtype is not torch.bool:  # ~ of a byte is 254 or 255
        raise TypeError(
            f"{as_key(path)!r}: expected torch.bool, as slices mark their ends there, got "
            f"{flag.dtype}. Store .to(torch.bool)."
        )


def _of_one_shape(
    paths: Sequence[tuple[str, ...]], flags: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """Views of the flags in the shape of the first one: `[N]` and `[N, 1]` are one flag a row."""
    shapes = [flag.shape for flag in flags if flag is not None]
    if all(shape == shapes[0] for shape in shapes):
        return flags
    if any(shape.numel() != shape[0] for shape in shapes):
        named = {
            as_key(path): list(flag.shape)
            for path, flag in zip(paths, flags, strict=True)
            if flag is not None
        }
        raise UnfitValue(
            f"flags of ends have different shapes, {named}, so a slice cannot mark its end in all "
            "of them: store them in one shape, [N, 1] for one flag a row."
        )
    # a view, as marks go into the sample itself
    return [None if flag is None else flag.view(shapes[0]) for flag in flags]


def _complete(
    sample: TensorDict,
    paths: Sequence[tuple[str, ...]],
    flags: Sequence[torch.Tensor | None],
    end_keys: Sequence[NestedKey],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three flags of ends; flags that the rows lack are derived from the others and added."""
    done, terminated, truncated = flags
    if done is not None and terminated is not None and truncated is not None:
        return done, terminated, truncated
    like = next((flag for flag in flags if flag is not None), None)
    no = _new_flags(sample) if like is None else torch.zeros_like(like)
    ends, terminal, cut = _named_ends(sample, [as_tuple(key) for key in end_keys], paths, no)
    cut = cut if truncated is None else cut | truncated
    if done is None:
        done = ends | cut if terminated is None else ends | cut | terminated
    if terminated is None:
        terminated = terminal | (done & ~cut)
    if truncated is None:
        truncated = cut | (done & ~terminated)
    for path, flag, stored in zip(paths, (done, terminated, truncated), flags, strict=True):
        if stored is None:
            insert(sample, path, flag)
    return done, terminated, truncated


def _named_ends(
    sample: TensorDict,
    columns: Sequence[tuple[str, ...]],
    known: Sequence[tuple[str, ...]],
    no: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ends in further columns: all, those named like terminations, those like truncations."""
    ends, terminal, cut = no, no, no
    for column in columns:
        found = None if column in known else find(sample, column)
        if found is None:
            continue
        flag = found != 0
        if flag.numel() != no.numel():
            flag = flag.reshape(len(no), -1).any(1).reshape(-1, *[1] * (no.ndim - 1))
            flag = flag.expand_as(no)
        flag = flag.reshape(no.shape)
        ends = ends | flag
        if column[-1] in TERMINATIONS:
            terminal = terminal | flag
        elif column[-1] in TRUNCATIONS:
            cut = cut | flag
    return ends, terminal, cut


def _mark_padding(sample: TensorDict, slices: Slices) -> None:
    real = _like(sample.get(keys.IS_INIT), slices.mask)
    stored = find(sample, keys.MASK)
    insert(sample, keys.MASK, real if stored is None else real & stored)
    for path in (keys.TRAJ_IDS, keys.ROW):
        ids = find(sample, path)
        if ids is not None:
            ids[~real] = keys.PADDING_ID


def _new_flags(sample: TensorDict) -> torch.Tensor:
    leaf = next(iter(sample.values(True, True)), None)
    device = CPU if leaf is None else leaf.device
    return torch.zeros(*sample.batch_size, 1, dtype=torch.bool, device=device)


def _set(flag: torch.Tensor, rows: Ints) -> None:
    if flag.is_cpu:
        flag.numpy()[rows] = True
    else:
        flag[_like(flag, rows)] = True


def _like(leaf: torch.Tensor, array: NDArray[np.generic]) -> torch.Tensor:
    """An array as a tensor on the device of a leaf of the sample."""
    return torch.from_numpy(array) if leaf.is_cpu else torch.tensor(array, device=leaf.device)
