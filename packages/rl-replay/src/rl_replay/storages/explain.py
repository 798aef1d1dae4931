"""Texts that explain what a storage holds and costs."""

from __future__ import annotations

import warnings

from rl_replay.linking.observations import CURES
from rl_replay.lossless.rows import LosslessRows
from rl_replay.storages.marked import MarkedStorage

_FEW_LINKS = 0.5


def storage_lines(storage: MarkedStorage) -> list[str]:
    """The rows of a tensor storage, its boundary markers, and its memory."""
    head = f"{type(storage).__name__}: {len(storage)} of {storage.max_size} rows"
    if storage.store is None or storage.links is None:
        return [f"{head}, nothing stored yet"]
    shape = f", shape {list(storage.shape)}" if storage.ndim > 1 else ""
    store, marks = storage.store, storage.links.keys
    cost = store.explain(len(storage))
    total = int(cost["row_bytes"] * storage.max_size + cost.get("side_bytes", 0))
    lines = [
        f"{head}{shape} on {storage.rows_device}, {len(store.schema)} leaves",
        f"  {cost['row_bytes']:.0f} bytes a row, {total:,} bytes in all, and 4 a row for links",
        f"  {_boundaries(marks.columns, marks.numbered, bool(marks.observations))}",
    ]
    if storage.comparisons.cut:
        lines.append(f"  {storage.comparisons}, {CURES}")
    if storage.comparisons.gaps:
        lines.append(f"  {storage.comparisons.explain_gaps()}")
    if "side_slots" in cost:
        lines.append(
            f"  lossless: {cost['linked_share']:.1%} of the rows name the row that holds their "
            f"next observation, {cost['side_slots']:.0f} are in the overflow table; without it a "
            f"row had {cost['plain_row_bytes']:.0f} bytes"
        )
        if len(storage) and cost["linked_share"] < _FEW_LINKS:
            lines.append(
                "  fewer than half are linked, so it saves little: are these n-step rows, or rows "
                "without ids and steps?"
            )
    index = storage.trajectories() if len(storage) else None
    if index is not None and 2 * index.one_row_pieces > index.pieces > 1:
        lines.append(
            f"  {index.one_row_pieces} of {index.pieces} pieces are single rows, so slices are "
            "short or slow: were rows of several environments flattened time first?"
        )
    return lines


def warn_of_few_links(store: LosslessRows, live: int) -> None:
    """Warns if lossless rows save little memory."""
    share = store.explain(live)["linked_share"]
    if share < _FEW_LINKS:
        warnings.warn(
            f"only {share:.0%} of {live} rows name the row that holds their next observation, so "
            "lossless=True saves little: do rows have ids and steps, do next observations equal "
            "the observations of the rows after them, and are trajectories longer than a few "
            "steps? buffer.explain() says what marks them.",
            stacklevel=2,
        )


def _boundaries(columns: tuple[object, ...], numbered: bool, observed: bool) -> str:
    if not columns:
        return "boundaries: no markers, so only rows of one call continue each other"
    said = f"boundaries from {', '.join(map(str, columns))}"
    if numbered:
        return f"{said}; a row continues the one that has its id and the step before"
    inside = "rows that are neighbours in one call, unless observations contradict it,"
    across = "where observations are equal bit for bit" if observed else "never"
    return f"{said}; without ids or steps {inside} continue each other, rows of two calls {across}"
