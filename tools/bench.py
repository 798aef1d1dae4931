"""What benchmarks share: medians of calls that take turns, printed rows, and records of them.

A benchmark calls `medians_us`, hands its figures to `report`, and runs in `with bench.session():`,
which reads `--json FILE` from the command line and writes the record there. `nox -s "bench(NAME)"`
puts this module on the path; by hand, `PYTHONPATH=tools python packages/NAME/benchmarks/FILE.py`.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

VERSIONS = ("torch", "tensordict", "torchrl", "numpy", "numba", "gymnasium", "cpprb")
ROWS: list[dict[str, Any]] = []  # what `report` was given, in order


def medians_us(
    repeats: int,
    *calls: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = 3,
    burst: int = 1,
    shuffle: bool = False,
) -> list[float]:
    """Median durations of some calls in microseconds; they take turns, so that load hits all.

    Of more than one call a turn, `burst`, one more comes first and is not timed. `shuffle` draws
    the order of every turn: the caches are those of whoever came before.
    """
    times: list[list[float]] = [[] for _ in calls]
    order = range(len(calls))
    for turn in range(repeats + warm_up):
        for number in random.sample(order, len(calls)) if shuffle else order:
            call, taken = calls[number], times[number]
            if burst > 1:
                call()
            for _ in range(burst):
                begin = clock()
                call()
                took = clock() - begin
                if turn >= warm_up:
                    taken.append(took)
    return [statistics.median(taken) * 1e6 for taken in times]


def report(
    work: str, ours: float, theirs: float | None = None, *, peer: str = "torchrl", note: str = ""
) -> None:
    """Print one row, microseconds of ours and of a peer with their ratio, and record it."""
    row: dict[str, Any] = {"work": work, "unit": "us", "ours": ours}
    line = f"  {work:<44}{ours:12,.1f} us"
    if theirs is not None:
        row[peer] = theirs
        line += f"   {peer} {theirs:12,.1f} us   {theirs / ours:7.2f} x"
    times = sum(other["work"].partition(" #")[0] == work for other in ROWS)
    row["work"] = f"{work} #{times + 1}" if times else work  # a record has one row of a name
    ROWS.append(row)
    print(f"{line}{note and '   '}{note}")


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
    """Rows with what one must know of where they come from."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "machine": machine(), "versions": versions(), "rows": rows}


@contextmanager
def session(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.Namespace]:
    """Read the command line, run a benchmark, and write its record where `--json` asks for it."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, help="write the record into this file")
    given = parser.parse_args()
    ROWS.clear()
    found = versions()
    print(f"{Path(sys.argv[0]).name}: {machine()}; {', '.join(map(' '.join, found.items()))}")
    yield given
    if given.json is not None:
        given.json.write_text(json.dumps(record(ROWS), indent=2) + "\n", encoding="utf-8")
