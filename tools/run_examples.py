"""Run examples, each as if only what it declares were installed, some at a time.

python tools/run_examples.py                            all, the long ones with fewer steps
python tools/run_examples.py sac_pendulum --steps 100   this one, with these options
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
AT_A_TIME = 2
FEWER_STEPS = {
    "a2c_pendulum": ["--steps", "100000"],
    "dqn_atari_path": ["--steps", "3200"],
    "dqn_recurrent_slices": ["--steps", "4096"],
    "grpo_tiny": ["--steps", "20"],
    "mcts_learned_model": ["--steps", "1000"],
    "memory_recipes": ["--steps", "20000", "--frames", "1000"],
    "offline_from_minari": ["--updates", "500"],
    "offline_iql": ["--updates", "500"],
    "pqn_vector": ["--steps", "40960", "--no-video"],
    "r2d2_hidden_velocity": ["--steps", "4096", "--samplers", "priorities", "uniform"],
    "sac_pendulum": ["--steps", "2000", "--no-video"],
}


def declared(script: Path) -> list[str]:
    """The requirements in the head of a script."""
    lines = script.read_text(encoding="utf-8").split("# /// script\n")[1].split("# ///\n")[0]
    head = tomllib.loads("".join(line.removeprefix("#") for line in lines.splitlines(True)))
    return list(head["dependencies"])


def closure(lines: Iterable[str]) -> set[str]:
    """The distributions that requirements bring into this environment, by their plain names."""
    seen: set[tuple[str, str]] = set()  # name and extra
    waiting = [Requirement(line) for line in lines]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            waiting += [
                needed
                for needed in map(Requirement, metadata.requires(name) or [])
                if needed.marker is None or needed.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen}


def hidden(lines: Iterable[str]) -> set[str]:
    """What is installed here and not brought by these requirements: distributions and modules."""
    brought = closure(lines) | {"pip"}
    owners = {
        module: {canonicalize_name(name) for name in names}
        for module, names in metadata.packages_distributions().items()
    }
    names = {one.metadata["Name"] for one in metadata.distributions()}
    return {name for name in names if canonicalize_name(name) not in brought} | {
        module for module, ours in owners.items() if not ours & brought
    }


def run(script: Path, options: list[str]) -> tuple[str, int]:
    """What the script printed, in a folder that goes afterwards, and its exit status."""
    paths = [str(ROOT / "tools" / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // AT_A_TIME)),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HIDDEN": " ".join(sorted(hidden(declared(script)))),
    }
    command, began = [sys.executable, str(script), *options], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    title = f"== {script.stem} {' '.join(options)} ({time.monotonic() - began:.0f} s)"
    return f"{title}\n{done.stdout}", done.returncode


def main() -> None:
    """Run the named examples, all without a name, and fail where one does."""
    given = sys.argv[1:]
    named = list(itertools.takewhile(lambda one: not one.startswith("-"), given))
    options = given[len(named) :]
    scripts = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
    names = named or list(scripts)
    if unknown := sorted(set(names) - scripts.keys()):
        sys.exit(f"no example {', '.join(unknown)}: there are {', '.join(scripts)}")
    failed = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = [pool.submit(run, scripts[n], options or FEWER_STEPS.get(n, [])) for n in names]
        for name, one in zip(names, runs, strict=True):
            text, status = one.result()
            print(text, flush=True)
            failed += [name] if status else []
    if failed:
        sys.exit(f"these examples failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
