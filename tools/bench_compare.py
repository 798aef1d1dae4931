"""Compare a record of benchmarks with the last one of the same kind of machine.

    python tools/bench_compare.py new.json benchmarks/records/rl-replay/slices

Prints a line for each row, and fails where a row takes more than 25 % longer than it did.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MOST = 1.25
Record = dict[str, Any]


def last_record(folder: Path, new: Record) -> Record | None:
    """The newest record in a folder that was made on the same kind of machine."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    same = [record for record in found if record["machine"] == new["machine"]]
    return max(same, key=lambda record: record["date"], default=None)


def changes(new: Record, old: Record) -> dict[str, float]:
    """How many times as long each row takes, of those that both records have."""
    before = {row["work"]: row["ours"] for row in old["rows"]}
    rows = [row for row in new["rows"] if row["work"] in before]
    return {row["work"]: row["ours"] / before[row["work"]] for row in rows}


def main(path: str, folder: str) -> None:
    """Print the comparison."""
    new = json.loads(Path(path).read_text(encoding="utf-8"))
    old = last_record(Path(folder), new)
    if old is None:
        print(f"no record of {new['machine']} in {folder}: nothing to compare with")
        return
    found = changes(new, old)
    for work, ratio in found.items():
        print(f"  {ratio:6.2f} x of {old['date']}   {work}{'   SLOWER' * (ratio > MOST)}")
    slower = [work for work, ratio in found.items() if ratio > MOST]
    if slower:
        sys.exit(f"{len(slower)} of {len(found)} rows take more than {MOST:.2f} times as long")


if __name__ == "__main__":
    main(*sys.argv[1:])
