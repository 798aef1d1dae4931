"""What a reader opens to follow one call, which is to stay as little as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "tools" / "shape.py"
MOST_FILES = {
    "ReplayBuffer.extend": 10,
    "ReplayBuffer.add": 10,
    "ReplayBuffer.extend lossless": 14,
    "ReplayBuffer.sample uniform": 8,
    "ReplayBuffer.sample slices": 12,
    "GymEnv.step": 8,
    "Collector.next": 20,
    "GAE.forward": 10,
    "GRUModule.forward": 10,
}


def test_calls_pass_through_few_files() -> None:
    """The files of each call, as `nox -s shape` prints them."""
    printed = subprocess.run(
        [sys.executable, SCRIPT, "--calls"], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.rsplit(maxsplit=5) for line in printed.splitlines()[1:]]
    found = {name.strip(): int(files) for name, _, _, files, *_ in rows}
    assert min(found.values()) > 0
    assert {name: found[name] for name in MOST_FILES if found[name] > MOST_FILES[name]} == {}
