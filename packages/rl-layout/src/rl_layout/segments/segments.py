"""Where the trajectories of a batch begin and end, as one small value object.

A segment is a run of neighbouring real rows of one trajectory. Rows are counted over the
flattened batch, time running fastest, so a row end of ``[B, T]`` always ends a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import Parameter

from rl_layout import keys
from rl_layout.arguments import check_dense, check_fill, check_tensor
from rl_layout.keys import PADDING_ID
from rl_layout.segments import flat_views, torch_cuts
from rl_layout.segments.contradiction import Comparison, compare_checked
from rl_layout.segments.end_kind import EndKind
from rl_layout.segments.lone_markers import flag_rows, id_rows, mask_rows
from rl_layout.segments.markers import (
    FIELDS,
    SIGNED,
    MarkerMemo,
    Markers,
    batch_shape,
    find_runs,
    marker_leaves,
    must_compare_observations,
)
from rl_layout.segments.time_blocks import TimeBlock, time_blocks
from rl_tensordict import find
from rl_tensordict.arguments import as_device, check_type, shown


class Segments:
    """The trajectories of one batch: starts, lengths and the kind of each end.

    Never change its tensors: everything else is derived from them on demand and kept. Build it
    with `of`, `from_starts`, `from_ends`, `from_ids` or `from_lengths`. Building costs one device
    synchronisation, `max_length` one more, and `num_real` one where some rows are masked out.

    Attributes:
        starts: int64 ``[S]``, first row of each segment.
        lengths: int64 ``[S]``, at least 1.
        kinds: uint8 ``[S]``, `EndKind` of each segment.
        batch_shape: ``[N]`` or ``[*B, T]``, the batch that the rows are in.
        num_contradicted: how many cuts only contradicting observations made.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> Segments.of(trajectories([2, 4, 3]))
        Segments(3 in 9 rows, lengths 2 to 4, 3 terminated)
    """

    def __init__(
        self, starts: Tensor, lengths: Tensor, kinds: Tensor, batch_shape: torch.Size
    ) -> None:
        self.starts = starts
        self.lengths = lengths
        self.kinds = kinds
        self.batch_shape = batch_shape
        self.num_contradicted = 0

    @classmethod
    def of(cls, batch: TensorDictBase, compared: Comparison | None = None) -> Segments:
        """Derive the segments from every marker that a batch has.

        Row i + 1 continues row i if both are real, their ids are equal, its step is one more, it
        is not ``is_init`` and i is not done (on n-step rows: done one step away). Markers that
        the batch lacks do not cut; a done flag without its kind counts as a termination. Where
        ids or steps are missing and the last dimension is not named ``"time"``, observations that
        contradict it cut too (`contradictions`), and a warning says so where most do, unless the
        batch was drawn row by row (``"index"``). The result is kept as long as the markers live
        and are not written to through torch, but where observations were compared.

        Args:
            batch: a TED tensordict ``[N]`` or ``[*B, T]``, time last.
            compared: what `compare_neighbours` found in this batch, where that is known already.

        Returns:
            The segments, over real rows only.

        Raises:
            KeyError: the batch has no marker at all.
            ValueError: it is empty, or a marker has another shape than the batch.
            TypeError: a marker has the wrong dtype.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> Segments.of(trajectories([2, 3])).starts.tolist()
            [0, 2]
        """
        return segments_of(batch, batch_shape(batch), marker_leaves(batch), compared)

    @classmethod
    def _of_markers(cls, markers: Markers, contradicted: Tensor | None = None) -> Segments:
        find: Any = torch_cuts.find_runs
        if markers.some().is_cpu:
            find = _find_outside if torch.compiler.is_dynamo_compiling() else find_runs
        starts, lasts, lengths, kinds = find(markers, contradicted)
        made = cls(starts, lengths, kinds, markers.batch_shape)
        made.lasts = lasts
        if markers.mask is None:
            made.num_real = made.num_rows  # known without asking the device
        return made

    @classmethod
    def from_starts(cls, flag: Tensor) -> Segments:
        """Derive the segments from the flag of first steps alone.

        Args:
            flag: bool ``[*B, T, 1]``, as ``is_init``. The first row starts a segment anyway.

        Returns:
            Segments that all end in a cut.

        Raises:
            TypeError: the flag is not boolean.
            ValueError: it has no row, or no last dimension of size 1.

        Example:
            >>> Segments.from_starts(torch.tensor([[1], [0], [1]], dtype=torch.bool)).lengths
            tensor([2, 1])
        """
        starts = flag_rows(flag, "is_init")
        return cls._of_markers(Markers(flag.shape[:-1], is_init=starts))

    @classmethod
    def from_ends(cls, flag: Tensor, *, mask: Tensor | None = None) -> Segments:
        """Derive the segments from the flag of last steps alone.

        Args:
            flag: bool ``[*B, T, 1]``, as ``("next", "done")``. The last row ends one anyway.
            mask: bool ``[*B, T]``, real steps; all are if absent.

        Returns:
            Segments that end truncated where the flag is set, since it does not tell a
            termination, and in a cut where only the batch ends.

        Raises:
            TypeError: the flag or the mask is not boolean.
            ValueError: the flag has no row, or no last dimension of size 1, or the mask has another
                shape.

        Example:
            >>> Segments.from_ends(torch.tensor([[0], [1], [0]], dtype=torch.bool)).lengths
            tensor([2, 1])
        """
        ends = flag_rows(flag, "done")
        real = None if mask is None else mask_rows(mask, flag.shape[:-1])
        return cls._of_markers(Markers(flag.shape[:-1], truncated=ends, mask=real))

    @classmethod
    def from_ids(
        cls, ids: Tensor, steps: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Segments:
        """Derive the segments from trajectory ids, and from positions if there are any.

        Args:
            ids: integers ``[*B, T]``, one number per trajectory.
            steps: integers ``[*B, T]``, position in the trajectory: a hole is a cut.
            mask: bool ``[*B, T]``, real steps; those whose id is not -1 if absent.

        Returns:
            Segments that all end in a cut.

        Raises:
            TypeError: a tensor does not hold signed integers, or the mask no flags.
            ValueError: the shapes differ, or there is no row.

        Example:
            >>> Segments.from_ids(torch.tensor([7, 7, 9]), torch.tensor([0, 2, 0])).lengths
            tensor([1, 1, 1])
        """
        flat, step = id_rows(ids, steps)
        real = flat != PADDING_ID if mask is None else mask_rows(mask, ids.shape)
        return cls._of_markers(Markers(ids.shape, traj_ids=flat, traj_step=step, mask=real))

    @classmethod
    def from_lengths(cls, lengths: Tensor, kinds: Tensor | None = None) -> Segments:
        """Lay segments of given lengths end to end in a flat batch.

        Args:
            lengths: integers ``[S]``, at least 1 each.
            kinds: `EndKind` of each end ``[S]``; cuts if absent.

        Returns:
            The segments of a batch ``[sum(lengths)]``.

        Raises:
            TypeError: the lengths are not integers.
            ValueError: there is no segment, one has length 0, or the shapes differ.

        Example:
            >>> Segments.from_lengths(torch.tensor([2, 3])).starts
            tensor([0, 2])
        """
        check_dense(lengths, "lengths", "integers [S]")
        for name, value in (("lengths", lengths), ("kinds", kinds)):
            if value is None:
                continue
            check_dense(value, name, "integers [S]")
            if value.dtype not in (*SIGNED, torch.uint8):
                msg = f"{name}: expected integers, got {value.dtype}. Call .long()."
                raise TypeError(msg)
        if lengths.ndim != 1 or not len(lengths) or int(lengths.min()) < 1:
            msg = (
                f"expected lengths [S] of at least 1: got shape {list(lengths.shape)}, "
                f"values {lengths.flatten()[:8].tolist()}. Leave empty segments out."
            )
            raise ValueError(msg)
        if kinds is not None and kinds.shape != lengths.shape:
            msg = f"expected one kind per segment, {list(lengths.shape)}: got {list(kinds.shape)}."
            raise ValueError(msg)
        lengths = lengths.to(torch.int64)
        ends = lengths.cumsum(0)
        made = torch.zeros_like(lengths, dtype=torch.uint8) if kinds is None else kinds
        return cls(ends - lengths, lengths, made.to(torch.uint8), torch.Size([int(ends[-1])]))

    def __len__(self) -> int:
        return self.starts.shape[0]

    def __repr__(self) -> str:
        rows = f"{len(self)} in {self.num_rows} rows"
        if not len(self):
            return f"Segments({rows})"
        shortest, longest = int(self.lengths.min()), self.max_length
        counts = torch.bincount(self.kinds.to(torch.int64), minlength=len(EndKind)).tolist()
        ends = [f"{counts[kind]} {kind.name.lower()}" for kind in EndKind if counts[kind]]
        if self.num_contradicted:
            ends.append(f"{self.num_contradicted} cut by contradicting observations")
        return f"Segments({rows}, lengths {shortest} to {longest}, {', '.join(ends)})"

    @cached_property
    def num_rows(self) -> int:
        """Number of rows of the batch, padding included."""
        return self.batch_shape.numel()

    @cached_property
    def num_real(self) -> int:
        """Number of real rows, which are the rows in segments."""
        return int(self.lengths.sum()) if len(self) else 0

    @cached_property
    def max_length(self) -> int:
        """Length of the longest segment, 0 without any."""
        return int(self.lengths.max()) if len(self) else 0

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """Cumulative lengths, int32 ``[S + 1]``, as variable-length kernels want them."""
        return self.offsets.to(torch.int32)

    @cached_property
    def offsets(self) -> Tensor:
        """Cumulative lengths, int64 ``[S + 1]``."""
        return torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))

    @cached_property
    def rows(self) -> Tensor:
        """Row numbers of the real rows, int64 ``[M]``, segment after segment."""
        shift = self.starts - self.offsets[:-1]
        return self.spread(shift) + torch.arange(self.num_real, device=self.starts.device)

    @cached_property
    def lasts(self) -> Tensor:
        """Last row of each segment, int64 ``[S]``."""
        return self.starts + self.lengths - 1

    @cached_property
    def ids(self) -> Tensor:
        """Compact trajectory numbers from 0, int64 ``[*B, T]``; -1 on padding."""
        numbers = torch.arange(len(self), device=self.starts.device)
        return self.scatter(self.spread(numbers), fill=PADDING_ID)

    @cached_property
    def positions(self) -> Tensor:
        """Distance of each row from the start of its segment, int64 ``[*B, T]``; 0 on padding."""
        return self.scatter(self.rows - self.spread(self.starts))

    @cached_property
    def order(self) -> Tensor:
        """Segments from the longest to the shortest, int64 ``[S]``; ties keep their order."""
        return torch.sort(self.lengths, descending=True, stable=True).indices

    @cached_property
    def has_gaps(self) -> bool:
        """Whether some rows of the batch are in no segment."""
        return self.num_real != self.num_rows

    def spread(self, values: Tensor) -> Tensor:
        """Repeat one value per segment over its real rows.

        Args:
            values: ``[S, ...]``.

        Returns:
            ``[M, ...]``, segment after segment.

        Example:
            >>> Segments.from_lengths(torch.tensor([2, 1])).spread(torch.tensor([5, 7]))
            tensor([5, 5, 7])
        """
        check_dense(values, "values", f"[{len(self)}, ...], one value a segment")
        if values.shape[:1] != self.starts.shape:
            msg = (
                f"values: expected [{len(self)}, ...], one a segment, got {list(values.shape)}. "
                "Use gather for a leaf of the batch."
            )
            raise ValueError(msg)
        return torch.repeat_interleave(values, self.lengths, 0, output_size=self.num_real)

    def gather(self, values: Tensor) -> Tensor:
        """Take the real rows of a leaf, segment after segment.

        Args:
            values: ``[*B, T, ...]``.

        Returns:
            ``[M, ...]``; a view of the values where every row is real.

        Raises:
            ValueError: the leaf does not start with the shape of the batch.

        Example:
            >>> Segments.from_ids(torch.tensor([4, -1, 6])).gather(torch.tensor([1, 2, 3]))
            tensor([1, 3])
        """
        flat = self._flat(values)
        return flat.index_select(0, self.rows) if self.has_gaps else flat

    def scatter(self, values: Tensor, fill: float = 0) -> Tensor:
        """Put real rows back into the shape of the batch, the inverse of `gather`.

        Args:
            values: ``[M, ...]``.
            fill: what padding rows hold.

        Returns:
            ``[*B, T, ...]``.

        Example:
            >>> Segments.from_ids(torch.tensor([4, -1, 6])).scatter(torch.tensor([1, 3]), -9)
            tensor([ 1, -9,  3])
        """
        self._check_real(values)
        if type(fill) is not int:
            check_fill(fill)
        if self.has_gaps:
            values = flat_views.place(values, self.rows, self.num_rows, fill)
        return values.reshape(*self.batch_shape, *values.shape[1:])

    def pad(self, values: Tensor, fill: float = 0) -> Tensor:
        """Lay one segment per row, the short ones filled up.

        Args:
            values: ``[*B, T, ...]``.
            fill: what the cells after a segment's end hold.

        Returns:
            ``[S, L, ...]``, L the longest length. `pad_mask` tells the real cells.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).pad(torch.tensor([5, 6, 7]))
            tensor([[5, 0],
                    [6, 7]])
        """
        check_fill(fill)
        return flat_views.pad(self.gather(values), self._cells, (len(self), self.max_length), fill)

    def unpad(self, padded: Tensor, fill: float = 0) -> Tensor:
        """Bring padded segments back into the shape of the batch, the inverse of `pad`.

        Args:
            padded: ``[S, L, ...]``, L at least the longest length.
            fill: what padding rows of the batch hold.

        Returns:
            ``[*B, T, ...]``.

        Raises:
            ValueError: there are fewer rows or columns than segments need.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).unpad(torch.tensor([[5, 0], [6, 7]]))
            tensor([5, 6, 7])
        """
        check_dense(padded, "padded", f"[{len(self)}, {self.max_length}, ...]")
        if padded.ndim < 2 or padded.shape[0] != len(self) or padded.shape[1] < self.max_length:
            msg = (
                f"expected padded segments [{len(self)}, {self.max_length}, ...], one a row, "
                f"got {list(padded.shape)}. Pass what pad returns."
            )
            raise ValueError(msg)
        cells = self._cells if padded.shape[1] == self.max_length else self._at(padded.shape[1])
        return self.scatter(padded.flatten(0, 1).index_select(0, cells), fill)

    @cached_property
    def pad_mask(self) -> Tensor:
        """The real cells of a padded leaf, bool ``[S, L]``."""
        steps = torch.arange(self.max_length, device=self.lengths.device)
        return steps < self.lengths[:, None]

    @cached_property
    def _cells(self) -> Tensor:
        return self._at(self.max_length)

    def _at(self, length: int) -> Tensor:
        """Cell of each real row in ``[S, length]``, flattened."""
        rows = torch.arange(len(self), device=self.starts.device) * length
        return self.spread(rows - self.starts) + self.rows

    def nest(self, values: Tensor) -> Tensor:
        """Lay one segment per row of a jagged nested tensor, without padding.

        Args:
            values: ``[*B, T, ...]``.

        Returns:
            ``[S, j, ...]``; shares memory with the values where every row is real. Its
            ``to_padded_tensor`` is ``[S, L, ...]``, L the longest length, as of `pad`.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).nest(torch.tensor([5, 6, 7])).is_nested
            True
        """
        # told the longest, torch pads to it and not to the number of all rows
        return torch.nested.nested_tensor_from_jagged(
            self.gather(values), self.offsets, max_seqlen=self.max_length
        )

    def unnest(self, nested: Tensor, fill: float = 0) -> Tensor:
        """Bring jagged segments back into the shape of the batch, the inverse of `nest`.

        Args:
            nested: ``[S, j, ...]``.
            fill: what padding rows of the batch hold.

        Returns:
            ``[*B, T, ...]``.

        Example:
            >>> segments = Segments.from_lengths(torch.tensor([1, 2]))
            >>> segments.unnest(segments.nest(torch.tensor([5, 6, 7])))
            tensor([5, 6, 7])
        """
        check_tensor(nested, "nested", f"[{len(self)}, j, ...], nested")
        if not nested.is_nested or nested.layout is not torch.jagged:
            msg = f"nested: expected a jagged nested tensor, got {shown(nested)}. Call nest or pad."
            raise TypeError(msg)
        return self.scatter(nested.values(), fill)

    def time_blocks(self, max_waste: float = 0.03) -> list[TimeBlock]:
        """Cut the segments, sorted by length, into dense blocks of time.

        Args:
            max_waste: share of a block's cells that may hold no real step, from 0 to 1.

        Returns:
            The blocks in order of time. Columns follow `order`, so those of a block are the first
            ones of the block before. Lengths are copied to the host once.

        Raises:
            ValueError: the share is outside ``[0, 1)``.

        Example:
            >>> blocks = Segments.from_lengths(torch.tensor([1, 3, 3])).time_blocks(0.0)
            >>> [tuple(block.rows.shape) for block in blocks]
            [(1, 3), (2, 2)]
        """
        return time_blocks(self.starts[self.order], self.lengths[self.order], max_waste)

    def sum(self, values: Tensor) -> Tensor:
        """Add a leaf up over each segment.

        Args:
            values: ``[*B, T, ...]``; flags and integers are added as int64, floats as float64.

        Returns:
            ``[S, ...]``.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).sum(torch.tensor([5.0, 6.0, 7.0]))
            tensor([ 5., 13.])
        """
        real = self.gather(values)
        exact = flat_views.accumulator(real.dtype)
        numbers = self.spread(torch.arange(len(self), device=self.starts.device))
        total = real.new_zeros((len(self), *real.shape[1:]), dtype=exact)
        total = total.index_add(0, numbers, real.to(exact))
        return total if exact == torch.int64 else total.to(real.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Average a leaf over the real rows of each segment.

        Args:
            values: ``[*B, T, ...]``.

        Returns:
            ``[S, ...]``, floating point.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).mean(torch.tensor([5.0, 6.0, 7.0]))
            tensor([5.0000, 6.5000])
        """
        total = self.sum(values)
        return total / self.lengths.reshape(-1, *(1,) * (total.ndim - 1))

    def first(self, values: Tensor) -> Tensor:
        """Take a leaf ``[*B, T, ...]`` at the first row of each segment: ``[S, ...]``.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).first(torch.tensor([5, 6, 7]))
            tensor([5, 6])
        """
        return self._flat(values).index_select(0, self.starts)

    def last(self, values: Tensor) -> Tensor:
        """Take a leaf ``[*B, T, ...]`` at the last row of each segment: ``[S, ...]``.

        Example:
            >>> Segments.from_lengths(torch.tensor([1, 2])).last(torch.tensor([5, 6, 7]))
            tensor([5, 7])
        """
        return self._flat(values).index_select(0, self.lasts)

    def to(self, device: Any) -> Segments:
        """Move to a device; returns itself if already there."""
        if as_device("device", device) == self.starts.device:
            return self
        starts, lengths = self.starts.to(device), self.lengths.to(device)
        moved = Segments(starts, lengths, self.kinds.to(device), self.batch_shape)
        moved.num_contradicted = self.num_contradicted
        return moved

    def _flat(self, values: Tensor) -> Tensor:
        """A leaf of the batch as ``[N, ...]``."""
        if not _is_dense(values):  # the message takes longer than most calls
            check_dense(values, "values", f"{[*self.batch_shape, '...']}, a leaf of the batch")
        shape = self.batch_shape
        dims = len(shape)
        if values.shape[:dims] != shape:
            return flat_views.flatten(values, shape)  # it says what is wrong
        return values if dims == 1 else values.flatten(0, dims - 1)

    def _check_real(self, values: Tensor) -> None:
        if not _is_dense(values):
            check_dense(values, "values", f"[{self.num_real}, ...], one row a real step")
        if values.shape[:1] != (self.num_real,):
            msg = (
                f"values: expected [{self.num_real}, ...], one row a real step, "
                f"got {list(values.shape)}. Call gather on a leaf of the batch first."
            )
            raise ValueError(msg)


def _is_dense(values: object) -> bool:
    """Tell whether a leaf is a plain tensor whose rows lie side by side."""
    plain = type(values) in (Tensor, Parameter)
    return plain and values.layout is torch.strided and not values.is_nested  # type: ignore[attr-defined]


def segments_of(
    batch: TensorDictBase,
    shape: torch.Size,
    leaves: Sequence[Tensor | None],
    compared: Comparison | None = None,
) -> Segments:
    """Derive the segments of a batch whose marker leaves were read already, as `Segments.of`."""
    if leaves[_IDS] is None or leaves[_STEP] is None:
        if compared is not None:
            check_type("compared", compared, Comparison, "what compare_neighbours returned")
        elif must_compare_observations(batch):
            compared = compare_checked(batch)
        if compared is not None:  # never kept: observations change without their markers
            markers = Markers.of_leaves(shape, leaves)
            made = Segments._of_markers(markers, compared.contradicts.reshape(-1))
            made.num_contradicted = compared.count
            if find(batch, (keys.INDEX,)) is None:  # rows drawn one by one are no neighbours
                compared.warn(stacklevel=3)
            return made
    return _memo.get(shape, leaves, Segments._of_markers)


_memo: MarkerMemo[Segments] = MarkerMemo()
_IDS, _STEP = (list(FIELDS).index(name) for name in ("traj_ids", "traj_step"))
_find_outside = torch.compiler.disable(find_runs)  # compilers do not follow numpy's arrays
