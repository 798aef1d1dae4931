"""What benchmarks share: medians of calls that take turns, printed rows, and records of them.

A benchmark calls `medians_us`, hands its figures to `report` or `table`, and runs in
`with bench.session():`, which reads the command line: `--json FILE` writes the record there,
`--turns N` shortens every measurement, to see that a benchmark runs. `nox -s "bench(NAME)"` puts
this module on the path; by hand, `PYTHONPATH=tools python packages/NAME/benchmarks/FILE.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

VERSIONS = ("torch", "tensordict", "torchrl", "numpy", "numba", "gymnasium", "cpprb")
ROWS: list[dict[str, Any]] = []  # what `report` and `table` were given, in order
LIMIT: list[int] = []  # the most turns of any measurement, where `--turns` gives them


def turns(wanted: int) -> int:
    """As many turns as a benchmark wants, or the fewer of `--turns`."""
    return min([wanted, *LIMIT])


def medians_us(  # noqa: PLR0913 - independent options of one measurement
    repeats: int,
    *calls: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = 3,
    burst: int = 1,
    shuffle: bool = False,
    before: Sequence[Callable[[], object]] = (),
    per_unit: bool = False,
) -> list[float]:
    """Median durations of some calls in microseconds; they take turns, so that load hits all.

    Of more than one call a turn, `burst`, one more comes first and is not timed. `shuffle` draws
    the order of every turn: the caches are those of the call before. `before` has a call for
    each, which is not timed and precedes it every time. `per_unit` divides each duration by the
    number that the call returns.
    """
    times: list[list[float]] = [[] for _ in calls]
    order = range(len(calls))
    prepare = before or [_nothing] * len(calls)
    warm_up = turns(warm_up)
    for turn in range(turns(repeats) + warm_up):
        for number in random.sample(order, len(calls)) if shuffle else order:
            call: Callable[[], Any] = calls[number]
            if burst > 1:
                prepare[number]()
                call()
            for _ in range(burst):
                prepare[number]()
                begin = clock()
                made = call()
                took = clock() - begin
                if turn >= warm_up:
                    times[number].append(took / made if per_unit else took)
    return [statistics.median(taken) * 1e6 for taken in times]


def in_blocks_us(
    rounds: int,
    *calls: Callable[[], object],
    warm_up: int = 3,
    timed: int = 8,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Median durations of some calls in microseconds: called again and again, and first.

    In each round every call is made several times in a row, in an order that is drawn anew. The
    first call of a block finds the caches as the work before it left them; those after the
    warm-up find their own data and code.
    """
    warm_up, timed = turns(warm_up), turns(timed)
    again: list[list[float]] = [[] for _ in calls]
    first: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(turns(rounds)):
        for number in random.sample(range(len(calls)), len(calls)):
            for turn in range(warm_up + timed):
                begin = clock()
                calls[number]()
                took = clock() - begin
                if not turn:
                    first[number].append(took)
                if turn >= warm_up:
                    again[number].append(took)

    def middle(times: list[list[float]]) -> list[float]:
        return [statistics.median(taken) * 1e6 for taken in times]

    return middle(again), middle(first)


def _nothing() -> None:
    pass


def medians(
    repeats: int, *measures: Callable[[], Sequence[float]], warm_up: int = 0
) -> list[list[float]]:
    """Medians of the figures that some measures return, taken in turns: a list for each measure."""
    found: list[list[Sequence[float]]] = [[] for _ in measures]
    for turn in range(turns(repeats) + warm_up):
        for measure, rows in zip(measures, found, strict=True):
            figures = measure()
            rows += [figures] * (turn >= warm_up)
    return [[statistics.median(column) for column in zip(*rows, strict=True)] for rows in found]


def report(
    work: str, ours: float, theirs: float | None = None, *, peer: str = "torchrl", note: str = ""
) -> None:
    """Print one row, microseconds of ours and of a peer with their ratio, and record it."""
    row: dict[str, Any] = {"work": work, "unit": "us", "ours": ours}
    line = f"  {work:<44}{ours:12,.1f} us"
    if theirs is not None:
        row[peer] = theirs
        line += f"   {peer} {theirs:12,.1f} us   {theirs / ours:7.2f} x"
    _keep(row)
    print(f"{line}{note and '   '}{note}")


def table(
    work: str, found: Mapping[str, float], ours: str, notes: Mapping[str, str] | None = None
) -> None:
    """Print microseconds of contenders and their ratios to ours; record them as one row."""
    print(f"\n{work}")
    for name, took in found.items():
        note = (notes or {}).get(name, "")
        line = f"  {name:<44}{took:12,.1f} us   {took / found[ours]:7.2f} x"
        print(f"{line}{note and '   '}{note}", flush=True)
    peers = {name: took for name, took in found.items() if name != ours}
    _keep({"work": work, "unit": "us", "ours": found[ours], **peers})


def _keep(row: dict[str, Any]) -> None:
    """Add a row to the record, which has one row of a name."""
    work = row["work"]
    times = sum(other["work"].partition(" #")[0] == work for other in ROWS)
    ROWS.append({**row, "work": f"{work} #{times + 1}" if times else work})


def machine() -> str:
    """The kind of this machine: figures of two machines of one kind can be compared."""
    kinds = [
        line.partition(":")[2].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    name = kinds[0] if kinds else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that figures depend on, where installed."""
    installed = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    found = {name: installed[name] for name in VERSIONS if name in installed}
    return {"python": platform.python_version(), **found}


def record(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows with what one must know of where they come from.

    A row has `benchmark` ("rl-replay/slices"), `work`, `unit`, `ours` and a figure for each peer.
    """
    script = Path(sys.argv[0]).absolute()
    named = [{"benchmark": f"{script.parts[-3]}/{script.stem}", **row} for row in rows]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {"date": today, "machine": machine(), "versions": versions(), "rows": named}
    return {**found, "turns": LIMIT[0]} if LIMIT else found


@contextmanager
def session(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.Namespace]:
    """Read the command line, run a benchmark, and write its record where `--json` asks for it."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, help="write the record into this file")
    hint = "at most so many turns of every measurement: to see that it runs, not for figures"
    parser.add_argument("--turns", type=int, help=hint)
    given = parser.parse_args()
    ROWS.clear()
    LIMIT[:] = [] if given.turns is None else [max(1, given.turns)]
    found = versions()
    print(f"{Path(sys.argv[0]).name}: {machine()}; {', '.join(map(' '.join, found.items()))}")
    yield given
    if given.json is not None:
        given.json.write_text(json.dumps(record(ROWS), indent=2) + "\n", encoding="utf-8")
