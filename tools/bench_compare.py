"""Run a benchmark and compare its record with the last one of the same kind of machine.

    python tools/bench_compare.py packages/rl-replay/benchmarks/slices.py [--keep]

Prints a line for each row, and fails where a row takes more than 25 % longer than it did. The new
record is kept in `benchmarks/records` on request.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
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


def compare(new: Record, folder: Path) -> None:
    """Print how a record differs from the last one in a folder."""
    old = last_record(folder, new)
    if old is None:
        print(f"no record of {new['machine']} in {folder}: nothing to compare with")
        return
    found = changes(new, old)
    for work, ratio in found.items():
        print(f"  {ratio:6.2f} x of {old['date']}   {work}{'   SLOWER' * (ratio > MOST)}")
    slower = [work for work, ratio in found.items() if ratio > MOST]
    if slower:
        sys.exit(f"{len(slower)} of {len(found)} rows take more than {MOST:.2f} times as long")


def main() -> None:
    """Run a benchmark, compare its record, and keep it on request."""
    parser = argparse.ArgumentParser(description="Compare a benchmark with its last record.")
    parser.add_argument("script", type=Path, help="a file of a package's benchmarks")
    parser.add_argument("--keep", action="store_true", help="keep the new record")
    given = parser.parse_args()
    records = ROOT / "benchmarks" / "records" / given.script.parts[-3] / given.script.stem
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.json"
        subprocess.run([sys.executable, str(given.script), "--json", str(path)], check=True)
        new = json.loads(path.read_text(encoding="utf-8"))
        if not new["rows"]:  # it needs a CUDA device
            return
        compare(new, records)
        if given.keep:
            kind = re.sub(r"[^a-z0-9]+", "-", new["machine"].lower()).strip("-")
            records.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, records / f"{new['date']}-{kind}.json")


if __name__ == "__main__":
    main()
