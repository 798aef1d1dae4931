"""Rows with their links: appended, updated in place, and restored after interrupted writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rl_replay.checkpoint.contents import Contents, FillRows, join
from rl_replay.data.dicts import DictReader
from rl_replay.data.staged_row import Readers
from rl_replay.linking.ends import EndChecks
from rl_replay.linking.links import FEW_ROWS, NOTHING_COMPARED, Links, Predecessors
from rl_replay.linking.markers import Extent, MarkerColumns, MarkerKeys
from rl_replay.linking.observations import Comparisons, Side, contradictions
from rl_replay.lossless.one_row import LosslessOneRow
from rl_replay.lossless.rows import LosslessRows, warn_of_few_links
from rl_replay.storages.layout import StorageLayout, with_exact_casts
from rl_replay.storages.ring import Ring
from rl_replay.storages.row_store import FewRows, PlainFewRows, PlainRows, RowStore
from rl_slabs import Span
from rl_slabs.internals import Leaves, TensordictReader, ValidatedLeaves, leaves_of, match_leaves
from rl_tensordict import CPU, NestedKey, as_tuple

_ENOUGH_ROWS, _ENOUGH_CALLS = 1024, 8


class WriteSession(ABC):
    """Who writes rows, and who else may: called before, in and after each write."""

    # A write calls begin, reserves a span of the ring, writes, calls doubt before it changes links,
    # before_publish, publishes the span, and calls published; recover where it fails; then end.

    ring: Ring
    takes_turns: bool  # whether writers exclude each other
    comparisons: Comparisons
    end_checks: EndChecks

    @abstractmethod
    def begin(self, count: int) -> Links:
        """Acquires what a write needs: the links, and in shared storages a lane."""

    @abstractmethod
    def doubt(self) -> None:
        """Marks links for relearning, unless this write ends or is recovered from."""

    def before_publish(self) -> None:  # noqa: B027 - without other readers there is nothing to say
        """Publishes facts that readers of the new rows need first."""

    @abstractmethod
    def published(self, span: Span, found: Predecessors) -> None:
        """Indexes published rows."""

    @abstractmethod
    def recover(self, span: Span | None, *, touched: bool) -> None:
        """Restores a consistent state after a write that was refused or interrupted."""

    def end(self) -> None:  # noqa: B027 - without other writers nothing was claimed
        """Releases what `begin` acquired."""

    @abstractmethod
    def relink(self) -> None:
        """Recomputes all links and the index, after markers changed."""

    @abstractmethod
    def empty(self) -> None:
        """Drops every row."""


class RowTable:
    """The rows of a storage: bytes, links, and how the usual tensordicts are read."""

    def __init__(
        self,
        layout: StorageLayout,
        store: RowStore,
        back: NDArray[np.int32],
        *,
        span_limit: int,
    ) -> None:
        self.layout, self.store = layout, store
        self.lacks_columns = bool(layout.missing)  # asked for every sample of slices
        self.links = Links(span_limit, layout.marker_keys, back=back)
        self.device = store.device
        self.on_host = self.device.type == "cpu"
        self.readers: Readers | None = None
        self.one_row: FewRows | None = None
        self._few_rows: dict[int, FewRows] = {}  # for batches, by their length
        structure, once = layout.structure, layout.lossless
        self._watched = once is not None
        compared = {path for path, _ in layout.marker_keys.observed}
        # whether what is stored once is also what tells that neighbours contradict each other
        self._compares_all = once is None or all(pair.root in compared for pair in once.pairs)
        plain = not layout.columns and self.on_host and structure.form in ("tensordict", "tree")
        if plain and not structure.element and not (once is not None and once.may_miss):
            schema = layout.schema
            tensordicts = TensordictReader(schema) if structure.is_tensordict else None
            self.readers = Readers(tensordicts, DictReader(schema, structure))
            self.one_row = _one_row(store, self.readers)

    def read(self, data: Any, dims: int) -> ValidatedLeaves | None:
        """The leaves of rows that match the stored ones; None if the general way is to look."""
        if self.readers is None:
            return None
        tensordicts, dicts = self.readers
        if type(data) is TensorDict:
            return None if tensordicts is None else tensordicts.of(data, dims)
        return dicts.of(data, dims)

    def append(
        self,
        session: WriteSession,
        leaves: Leaves | ValidatedLeaves,
        extent: Extent,
        marks: MarkerKeys | None = None,
        few: FewRows | None = None,
    ) -> Span:
        """Writes rows after the newest ones; `few` are their columns if they were read already.

        `marks` are their marker columns if not the usual.
        """

        def match(links: Links, span: Span) -> Predecessors:
            return self.match(links, leaves, extent, span, marks)

        def write(span: Span, found: Predecessors) -> None:
            if few is not None:
                few.write(span, found.back)
                return
            given = leaves
            if marks is not None and isinstance(leaves, Leaves):
                new = {path for key, path in marks.paths if key not in self.layout.schema}
                given = Leaves((path, leaf) for path, leaf in leaves.items() if path not in new)
            if self.store.linker is None and isinstance(given, ValidatedLeaves):
                self.store.rows.put(span.rows, given)  # known to fit: nothing to check
            else:
                proved = found.contradictions.proved and self._compares_all
                self.store.write(span.rows, span.numbers, given, found.back, proved=proved)

        require_room(session.ring, extent.count, session.ring.span_limit)
        span, found = self._append(session, extent.count, match, write)
        known, side_by_side = marks or self.links.keys, isinstance(found.lasts, Side)
        if extent.count == 1 and isinstance(leaves, ValidatedLeaves):
            session.end_checks.see_row(leaves.__getitem__, known)
        elif found.is_run and isinstance(leaves, ValidatedLeaves):
            # no other row of a run has a flag
            session.end_checks.see_row(lambda key: leaves[key][-1:], known)
        elif found.marks is not None:
            session.end_checks.see(leaves, found.marks, known, extent, side_by_side=side_by_side)
        return span

    def few_rows(self, count: int) -> FewRows | None:
        """What writes batches of so few rows quickly; None if nothing does."""
        if self.one_row is None or not 0 < count <= FEW_ROWS or not self.links.keys.numbered:
            return None
        few = self.one_row if count == 1 else self._few_rows.get(count)
        if few is None and isinstance(self.store, PlainRows) and self.readers is not None:
            few = self._few_rows[count] = PlainFewRows(self.store.rows, self.readers, count)
        return few

    def append_one(self, session: WriteSession, one_row: FewRows, row: ValidatedLeaves) -> Span:
        """`append` for the row that `one_row` has read."""

        def match(links: Links, span: Span) -> Predecessors:
            return links.match_one(row.__getitem__, span.numbers.start)

        def write(span: Span, found: Predecessors) -> None:
            one_row.write(span, found.back)

        span, found = self._append(session, 1, match, write)
        if found.ends or session.end_checks.follows_end:
            session.end_checks.see_row(row.__getitem__, self.links.keys)
        return span

    def _append(
        self,
        session: WriteSession,
        count: int,
        match: Callable[[Links, Span], Predecessors],
        write: Callable[[Span, Predecessors], None],
    ) -> tuple[Span, Predecessors]:
        """Reserves rows, writes and publishes them; undoes an interrupted write."""
        rows, linker, span = self.store.rows, self.store.linker, None
        links = session.begin(count)
        touches, keys = rows.touches, links.keys
        try:
            span = session.ring.reserve(count)
            found = match(links, span)
            # order: bytes, links, publication, links of older rows; a reader sees only published
            # rows
            write(span, found)
            session.doubt()
            links.write(span, found)
            session.before_publish()
            session.ring.publish(count)
            if linker is not None:
                linker.link_predecessors(span.numbers)
            session.published(span, found)
        except BaseException:
            links.keys = keys
            session.recover(span, touched=rows.touches != touches)
            raise
        finally:
            session.end()
        if found.contradictions is not NOTHING_COMPARED:
            session.comparisons.add(found.contradictions)
        if self._watched:
            self._watch(session.ring, count)
        return span, found

    def match(
        self,
        links: Links,
        leaves: Leaves | ValidatedLeaves,
        extent: Extent,
        span: Span,
        marks: MarkerKeys | None,
    ) -> Predecessors:
        """The predecessors of rows about to be written."""
        usual = links.keys
        if marks is not None:
            links.keys = marks
        try:
            return links.match(leaves, extent, span.numbers)
        except Exception:
            if isinstance(leaves, ValidatedLeaves):
                raise
            # a marker does not fit: say which, in the words of the schema
            fields, batch = self.store.schema.fields, torch.Size([extent.count])
            match_leaves(leaves, fields, batch, exact=True)
            raise
        finally:
            links.keys = usual

    def recover(self, ring: Ring, span: Span | None, *, touched: bool) -> bool:
        """Restores the rows after an interrupted write; whether its links are to be relearned."""
        # Where no byte was written the old rows can be read again. Else they are gone: the ring
        # never gives out that they stand.
        if span is None:
            return False
        if not touched:
            ring.cancel()
            return False
        published = bool(ring.is_live(torch.tensor([span.numbers.stop - 1], device=CPU))[0])
        if self.store.linker is not None:
            self.store.linker.repair(span.numbers, published=published)
        return not published

    def arrange(self, dim_extend: int) -> None:
        """Sets the dimension of data along which rows are written from now on."""
        if self.layout.dim_extend != dim_extend:
            self.layout = self.layout._replace(dim_extend=dim_extend)

    def with_casts(self, cells: TensorDictBase) -> Leaves:
        """The leaves of rows, integers and flags as they are stored if no value changes."""
        return with_exact_casts(leaves_of(cells), self.layout.schema)

    def read_keys(self, positions: torch.Tensor, keys: Sequence[NestedKey]) -> TensorDict:
        """Copies some leaves of rows."""
        return self.store.read(positions.to(self.device), keys=keys)

    def update(self, session: WriteSession, numbers: torch.Tensor, cells: TensorDictBase) -> None:
        """Updates some leaves of live rows in place, while no writer overwrites them."""
        if not session.takes_turns:
            self._require_free(cells)
        store, links = self.store, self.links
        positions = session.ring.positions(numbers)
        given = leaves_of(cells)
        store.schema.select(list(given))
        linked = store.linker is not None  # other rows need no offsets
        offsets = links.back[positions.cpu().numpy()] if linked else links.back[:0]
        positions = positions.to(self.device)
        marks = any(key in links.keys.columns for key in cells.keys(True, True))
        # kept until the update has succeeded, to undo it where relinking is refused
        former = store.read(positions, keys=list(given)), links.back.copy() if marks else None
        touches, whole = store.rows.touches, False
        try:
            try:
                store.update(positions, numbers, cells, offsets)
                if marks:
                    session.relink()
                whole = True
            except BaseException:
                if store.rows.touches != touches:
                    store.update(positions, numbers, former[0], offsets)
                    if former[1] is not None:
                        links.back[:] = former[1]
                        session.relink()
                whole = True
                raise
        finally:
            if not whole:
                session.empty()  # rows that are neither the former nor the later ones

    def relink(self, ring: Ring) -> None:
        """Recomputes all links of a ring with one lane from the markers."""
        links, window = self.links, ring.window()
        if not len(window):
            return
        numbers = torch.arange(window.first[0], window.first[0] + len(window), device=CPU)
        if columns := list(links.keys.columns):
            cells = self.read_keys(ring.positions(numbers), columns)
            links.revise(MarkerColumns.of(cells, links.keys), window.first[0])
        # rows without ids and steps are matched by observation with the newest ones
        observed = [key for pair in links.keys.observations for key in pair]
        stride = self.layout.columns.numel()
        if not links.keys.numbered and observed and len(numbers) >= stride:
            positions = ring.positions(numbers[-stride:])
            last = self.read_keys(positions, [*links.keys.columns, *observed])
            links.observe_tail(last, links.back[positions.numpy()])

    def mark(self, ids: list[NestedKey], ends: list[NestedKey]) -> None:
        """Names the columns that cut alongside those of the contract."""
        layout = self.layout
        self.layout = StorageLayout(*layout[:3], list(ids), list(ends), *layout[5:])
        self.lacks_columns = bool(self.layout.missing)
        self.layout.require_columns()
        self.links.keys = self.layout.marker_keys

    def link_given(self, session: WriteSession, *, is_time: bool) -> None:
        """Links rows that fill all of the memory, as those of a dataset do."""
        store, known = self.store, self.links.keys
        count, inner = len(store), self.layout.columns.numel()
        cells = store.read(slice(0, count), keys=list(known.columns) or None)
        # [count - inner], row i and row i + inner of the same column
        marks = MarkerColumns.of(cells, known)
        joined = marks.joined(slice(0, count - inner), slice(inner, count))
        if known.compares and not is_time:
            rows = (
                store.rows.view() if isinstance(store, PlainRows) else store.read(slice(0, count))
            )
            extent = Extent(count, inner, count // inner)
            leaves = leaves_of(rows)
            wrong, found = contradictions(leaves, known, extent, joined)
            joined = joined if wrong is None else joined & ~wrong
            session.comparisons.add(found)
            session.end_checks.see(leaves, marks, known, extent, side_by_side=False)
        self.links.back[inner:] = np.where(joined, inner, 0)

    def fill(self, contents: Contents, fill: FillRows) -> None:
        """Writes restored rows and links; those of several lanes may continue each other then."""
        back = self.links.back
        fill(self.store, back)
        if contents.joins:
            join(contents.runs(), self.store, self.links.keys, back, len(contents.window.first))

    def _watch(self, ring: Ring, count: int) -> None:
        """Warns once, after enough rows, if lossless storage saves little."""
        # rows of the last calls may still wait for the ones that continue them
        if ring.written >= max(_ENOUGH_ROWS, _ENOUGH_CALLS * count):
            self._watched = False
            if isinstance(self.store, LosslessRows):
                warn_of_few_links(self.store, len(ring.window()))

    def _require_free(self, cells: TensorDictBase) -> None:
        """Raises for changes of leaves from which links and next observations were made."""
        fixed = [as_tuple(key) for key in self.links.keys.columns]
        if self.layout.lossless is not None:
            pairs = self.layout.lossless.pairs
            fixed += [path for pair in pairs for path in (pair.root, pair.next)]
        found = [path for path in leaves_of(cells) if path in fixed]
        if found:
            raise ValueError(
                f"{found} cannot be changed in a shared buffer with several lanes: markers, and "
                "observations that are stored once, are fixed when they are written. Give the "
                "other leaves alone."
            )


def _one_row(store: RowStore, readers: Readers) -> FewRows | None:
    if isinstance(store, PlainRows):
        return PlainFewRows(store.rows, readers)
    return None if store.layout.has_steps else LosslessOneRow(store, readers)


def require_room(ring: Ring, count: int, limit: int) -> None:
    """Raises if one write cannot hold so many rows."""
    if count > limit:
        lanes = len(ring.window().first)
        what = "a storage" if lanes == 1 else f"one of the {lanes} lanes of a storage, each"
        raise ValueError(
            f"{count} rows do not fit {what} of {limit}: extend by fewer, or make a larger one."
        )
