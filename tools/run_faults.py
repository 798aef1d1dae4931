"""Kill, interrupt and fuzz, each for its share of the seconds; every script prints its figures.

python tools/run_faults.py                 five minutes in all
python tools/run_faults.py --seconds 60
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "integration_tests" / "faults"
SHARES = {"kill": 0.25, "inject": 0.25, "inject_dumps": 0.06, "inject_maps": 0.04}
OF_FUZZING = 0.4  # all packages together


def commands(seconds: float) -> list[list[str]]:
    """The scripts with their options, in turn."""
    found = [[f"{name}.py", "--seconds", str(seconds * share)] for name, share in SHARES.items()]
    names = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    packages = [
        name
        for name in names
        if (FOLDER / f"{name.replace('rl-', 'fuzz_').replace('-', '_')}.py").exists()
    ]
    each = str(seconds * OF_FUZZING / max(1, len(packages)))
    found += [
        ["fuzz.py", "--package", name, "--seconds", each, "--most", "0.02"] for name in packages
    ]
    return found


def main() -> None:
    """Run every script; the first that fails ends it."""
    parser = argparse.ArgumentParser(description="Kill, interrupt and fuzz.")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all together")
    for script, *options in commands(parser.parse_args().seconds):
        done = subprocess.run([sys.executable, str(FOLDER / script), *options], check=False)
        if done.returncode:
            sys.exit(f"{script} {' '.join(options)} failed with {done.returncode}")


if __name__ == "__main__":
    main()
