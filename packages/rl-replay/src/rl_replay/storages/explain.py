"""Texts that explain what a storage holds and costs."""

from __future__ import annotations

from rl_replay.linking.observations import CURES
from rl_replay.lossless.rows import FEW_LINKS
from rl_replay.storages.session import Session
from rl_replay.storages.table import RowTable
from rl_replay.trajectories.index import TrajectoryIndex


def session_lines(head: str, session: Session) -> list[str]:
    """The rows that `head` introduces, how they are shared, their boundaries, and their memory."""
    shared = [f"  {line}" for line in session.explain()]
    if session.table is None:
        return [f"{head}, nothing stored yet", *shared]
    index = session.trajectories() if len(session.ring.window()) else None
    first, *others = _table_lines(head, session, session.table, index)
    return [first, *shared, *others]


def _table_lines(
    head: str, session: Session, table: RowTable, index: TrajectoryIndex | None
) -> list[str]:
    ring, comparisons = session.ring, session.comparisons
    live, capacity = len(ring.window()), ring.capacity
    columns = table.layout.columns
    shape = f", shape {[capacity // columns.numel(), *columns]}" if columns else ""
    store, marks = table.store, table.links.keys
    cost = store.explain(live)
    total = int(cost["row_bytes"] * capacity + cost.get("side_bytes", 0))
    lines = [
        f"{head}{shape} on {table.device}, {len(store.schema)} leaves",
        f"  {cost['row_bytes']:.0f} bytes a row, {total:,} bytes in all, and 4 a row for links",
        f"  {_boundaries(marks.columns, marks.numbered, bool(marks.observations))}",
    ]
    if store.rows.is_compiled:
        lines.append("  large writes are packed by a compiled loop")
    if comparisons.cut:
        lines.append(f"  {comparisons}, {CURES}")
    lines += [f"  {line}" for line in session.end_checks.lines()]
    if comparisons.gaps:
        lines.append(f"  {comparisons.explain_gaps()}")
    if "side_slots" in cost:
        lines.append(
            f"  lossless: {cost['linked_share']:.1%} of the rows name the row that holds their "
            f"next observation, {cost['side_slots']:.0f} are in the overflow table; without it a "
            f"row had {cost['plain_row_bytes']:.0f} bytes"
        )
        if live and cost["linked_share"] < FEW_LINKS:
            lines.append(
                "  fewer than half are linked, so it saves little: are these n-step rows, or rows "
                "without ids and steps?"
            )
    if index is not None and 2 * index.one_row_pieces > index.pieces > 1:
        lines.append(
            f"  {index.one_row_pieces} of {index.pieces} pieces are single rows, so slices are "
            "short or slow: were rows of several environments flattened time first?"
        )
    return lines


def _boundaries(columns: tuple[object, ...], numbered: bool, observed: bool) -> str:
    if not columns:
        return "boundaries: no markers, so only rows of one call continue each other"
    said = f"boundaries from {', '.join(map(str, columns))}"
    if numbered:
        return f"{said}; a row continues the one that has its id and the step before"
    inside = "rows that are neighbours in one call, unless observations contradict it,"
    across = "where observations are equal bit for bit" if observed else "never"
    return f"{said}; without ids or steps {inside} continue each other, rows of two calls {across}"
