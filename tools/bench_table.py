"""Writes the benchmark table of the README and of the page of benchmarks.

`python -m tools.bench_table` reads the records in benchmarks/results, which are those that the
benchmarks write with `--json`. Where several records of the newest one's machine hold a row, the
latest counts. `SHOWN` says which rows the table and the chart show, and under what names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/benchmarks.md")
BEGIN, END = "<!-- benchmark table: begin -->", "<!-- benchmark table: end -->"
Record = dict[str, Any]


class Shown(NamedTuple):
    """A row of a record, and how the pages name it and its peer's figure."""

    benchmark: str
    work: str
    title: str
    peer: str = "torchrl"
    in_table: bool = True


SHOWN = [
    Shown("rl-replay/replay", "sample 256 of 1,000,000 rows", "Sample 256 of 1,000,000 rows"),
    Shown(
        "rl-replay/slices",
        "sample 8 x 32 of 1,000,000 rows, 64 written before each",
        "Sample slices 8 x 32 of 1,000,000 rows, with writes between",
    ),
    Shown("rl-replay/replay", "extend by 10,000 rows", "Extend by 10,000 rows"),
    Shown("rl-replay/replay", "add one row", "Add one row"),
    Shown("rl-envs/envs", "CartPole, 1000 random steps", "1,000 random steps of CartPole"),
    Shown("rl-transforms/transforms", "random actions", "Ten cheap transforms, per step"),
    Shown(
        "rl-collect/collecting",
        "a step, one environment, 500 steps a batch",
        "Collect a step of CartPole with a policy",
    ),
    Shown(
        "rl-collect/collecting",
        "a step, 8 environments in turn, 1,024 steps a batch",
        "Collect a step, 8 environments in one process",
    ),
    Shown("rl-value/value", "GAE on 64 x 1024", "GAE with its value network, 64 x 1024 steps"),
    Shown(
        "rl-recurrent/recurrent",
        "lstm, flat [4096], episodes near 40, H=128",
        "LSTM forward and backward, 4,096 flat steps",
        peer="torchrl, pad",
    ),
    Shown(
        "integration_tests/recurrent_ppo",
        "all",
        "Recurrent PPO on CartPole, a whole iteration",
        in_table=False,
    ),
    Shown(
        "rl-value/value",
        "with every statistic",
        "Clipped PPO loss, forward and backward",
        in_table=False,
    ),
]


class Figures(NamedTuple):
    """One row of the pages; times are in `unit`."""

    title: str
    unit: str
    ours: float
    peer: float
    in_table: bool

    @property
    def ratio(self) -> float:
        """How many times as long the peer takes."""
        return self.peer / self.ours


def records(folder: Path = RESULTS) -> list[Record]:
    """Full records of the newest one's machine, oldest first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    found = sorted((one for one in found if "turns" not in one), key=lambda one: one["date"])
    return [one for one in found if one["machine"] == found[-1]["machine"]]


def figures(found: list[Record]) -> list[Figures]:
    """What the pages show of some records, of which a later one counts."""
    rows = {(row["benchmark"], row["work"]): row for one in found for row in one["rows"]}
    known = [(shown, rows[shown[:2]]) for shown in SHOWN if shown[:2] in rows]
    return [
        Figures(shown.title, row["unit"], row["ours"], row[shown.peer], shown.in_table)
        for shown, row in known
    ]


def digits(value: float) -> str:
    """A figure with two significant digits, three from 100 on."""
    text = f"{value:.3g}" if value >= 100 else f"{value:.2g}"
    return f"{float(text):,.0f}" if value >= 10 else f"{float(text):g}"


def table(found: list[Record]) -> str:
    """The table in Markdown, one number per cell."""
    lines = ["| work | TorchRL | these packages | ratio |", "|---|--:|--:|--:|"]
    for row in figures(found):
        if row.in_table:
            scale, unit = (1e3, "ms") if row.unit == "us" and row.ours >= 1e3 else (1, row.unit)
            peer, ours = (f"{digits(took / scale)} {unit}" for took in (row.peer, row.ours))
            lines.append(f"| {row.title} | {peer} | {ours} | {digits(row.ratio)} |")
    return "\n".join(lines)


def updated(text: str, found: list[Record]) -> str:
    """A page whose text between the two comments is the table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for name in PAGES:
        page = ROOT / name
        page.write_text(updated(page.read_text(encoding="utf-8"), records()), encoding="utf-8")
