"""Writes the benchmark table of the README from a record in benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- benchmark table: begin -->", "<!-- benchmark table: end -->"
Row = dict[str, Any]


def newest_record() -> dict[str, Any]:
    """The record that the README shows: the last one by name, which begins with its date."""
    path = sorted((ROOT / "benchmarks" / "results").glob("*.json"))[-1]
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def complete(row: Row) -> Row:
    """A row with its third figure: a record holds two of `ours`, `torchrl` and `ratio`."""
    ours, peer, ratio = row.get("ours"), row.get("torchrl"), row.get("ratio")
    return {
        **row,
        "ours": ours if ours is not None else peer / ratio,
        "torchrl": peer if peer is not None else ours * ratio,
        "ratio": ratio if ratio is not None else peer / ours,
    }


def digits(value: float) -> str:
    """A figure with two significant digits, three from 100 on."""
    text = f"{value:.3g}" if value >= 100 else f"{value:.2g}"
    return f"{float(text):,.0f}" if value >= 10 else f"{float(text):g}"


def table(record: dict[str, Any]) -> str:
    """The table in Markdown, one number per cell."""
    lines = ["| work | TorchRL | these packages | ratio |", "|---|--:|--:|--:|"]
    for row in map(complete, record["rows"]):
        peer, ours = (f"{digits(row[name])} {row['unit']}" for name in ("torchrl", "ours"))
        lines.append(f"| {row['work']} | {peer} | {ours} | {digits(row['ratio'])} |")
    return "\n".join(lines)


def updated(text: str, record: dict[str, Any]) -> str:
    """A page whose text between the two comments is the table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(updated(page.read_text(encoding="utf-8"), newest_record()), encoding="utf-8")
