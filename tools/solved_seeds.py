"""Train the recurrent agent of an example from ten seeds drawn now; nine must solve the task.

python tools/solved_seeds.py examples/ppo_recurrent_cartpole.py [OPTIONS OF THE EXAMPLE]
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS, WANTED = 10, 9


def main(path: str, *options: str) -> None:
    """Print a line for each seed."""
    solved = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in random.SystemRandom().sample(range(2**31), SEEDS):
            out = Path(folder) / str(seed)
            command = [sys.executable, path, "--seed", str(seed), "--out", str(out), *options]
            told = subprocess.run(
                command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            verdict, steps = told.stdout.splitlines()[:2]
            print(f"seed {seed}: {verdict}; {steps}", flush=True)
            solved += verdict.startswith("solved")
    if solved < WANTED:
        sys.exit(f"{solved} of {SEEDS} seeds solved the task, {WANTED} are wanted")


if __name__ == "__main__":
    main(*sys.argv[1:])
