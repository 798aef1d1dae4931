"""The forms in which a dump keeps rows: compact among its parts, or in a file of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.checkpoint.other_file import checked_file
from rl_replay.checkpoint.parts import OtherFile
from rl_replay.checkpoint.reader import Archive
from rl_replay.compact import in_h5
from rl_replay.compact.decode import CompactSource, put_rows, read_all
from rl_replay.compact.encode import CompactRows
from rl_replay.compact.in_archive import ArchivedRows, parts_of
from rl_replay.compact.order import CompactOrder
from rl_replay.storages.row_store import PlainRows, RowStore
from rl_slabs import RowSchema
from rl_slabs.internals import Field
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.types import Ints

COMPACT = "storage/compact"


def names_apart(*keys: Sequence[NestedKey] | None) -> frozenset[str]:
    """Last names of the leaves that are never kept once."""
    return frozenset(as_tuple(key)[-1] for some in keys for key in some or ())


@dataclass(frozen=True)
class InArchive:
    """Among the other parts of the dump, with lengths or with the offsets of nested tensors."""

    nested: bool = False
    apart: Collection[str] = ()  # leaves that are never kept once, by their last name

    def parts(self, rows: CompactRows, order: NDArray[np.int32] | None) -> dict[str, Any]:
        """Rows as parts of a dump."""
        return parts_of(rows, order, nested=self.nested)


@dataclass(frozen=True)
class InH5:
    """In an HDF5 file, which has a second name that its users chose."""

    link: str
    apart: Collection[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def parts(self, rows: CompactRows, order: NDArray[np.int32] | None) -> dict[str, Any]:
        """Rows as parts of a dump."""
        in_h5.h5py()
        write = partial(in_h5.write, rows=rows, order=order, options=self.options)
        return {"kind": "h5", "file": OtherFile(".h5", write, self.link)}


RowForm = InArchive | InH5
"""How the rows of a dump are kept."""


def compact_parts(
    form: RowForm,
    store: RowStore,
    schema: RowSchema,
    positions: Ints,
    order: CompactOrder,
) -> dict[str, Any]:
    """The rows of a store as parts of a dump; `positions` are those of the rows by age."""
    places = positions if order.order is None else positions[order.order]
    rows = CompactRows(store, places, order.lengths, schema.fields, form.apart)
    return form.parts(rows, order.order)


def is_compact(archive: Archive) -> bool:
    """Whether a dump holds rows in such a form."""
    return f"{COMPACT}/kind" in archive.names()


def fill_store(
    archive: Archive,
    store: RowStore,
    schema: RowSchema,
    positions: Ints,
    write: Callable[[Any], None],
) -> None:
    """Fills a cleared store of rows like `schema` from a dump with compact rows."""
    # Each row by age has a position, -1 if left out. `write` writes into a store whose rows depend
    # on each other.
    with _opened(archive, len(positions)) as source:
        if isinstance(store, PlainRows):
            put_rows(source, store.rows, positions)
        else:
            write(read_all(source, schema))


@contextmanager
def _opened(archive: Archive, count: int) -> Iterator[CompactSource]:
    kind = archive.part(f"{COMPACT}/kind")
    if kind == "h5":
        name = checked_file(archive.folder, archive.part(f"{COMPACT}/file"))
        with closing(in_h5.H5Rows(name, count)) as rows:
            yield rows
    elif kind in ("flat", "nested"):
        yield ArchivedRows(archive, COMPACT, count)
    else:
        raise ValueError(
            f"{archive.folder} holds rows in the form {kind!r}, which is not known here: "
            "read it with the one that wrote it."
        )


def check_compact(archive: Archive, schema: RowSchema, count: int) -> None:
    """Raises unless a dump has every leaf of so many rows in compact form."""
    with _opened(archive, count) as source:
        found = sorted(
            [*source.steps, *source.shared, *(keys.next_key(path) for path in source.shared)]
        )
        wanted = sorted(one.path for one in schema.fields)
        lengths, order = source.lengths, source.order
        fits = ((lengths > 0) & (lengths <= count)).all() and int(lengths.sum()) == count
        is_order = order is None or np.array_equal(np.sort(order), np.arange(count))
        if found != wanted or not fits or not is_order:
            raise ValueError(
                f"{archive.folder} holds {int(lengths.sum())} rows of the leaves {found} in "
                f"compact form, and names {count} of {wanted}. Restore it from a copy."
            )
        fields = {one.path: one for one in schema.fields}
        for path in source.steps:
            _require_leaf(source, "steps", fields[path], count)
        for path in source.shared:
            _require_leaf(source, "shared", fields[path], count + len(lengths))
            wrong = source.exceptions(path)
            if len(wrong):
                _require_leaf(source, "exceptions", fields[path], len(wrong))
                if wrong.min() < 0 or wrong.max() >= count:
                    raise ValueError(
                        f"{archive.folder}: rows {wrong.min()} to {wrong.max()} of {count} are "
                        f"exceptions of {path}. Restore it from a copy."
                    )


def _require_leaf(source: CompactSource, group: str, one: Field, count: int) -> None:
    found, wanted = source.layout(group, one.path), (one.dtype, (count, *one.shape))
    if found != wanted:
        raise ValueError(
            f"the leaf {one.key!r} is {found[0]} {list(found[1])} among {group!r}, and should be "
            f"{wanted[0]} {list(wanted[1])}. Restore the dump from a copy."
        )
