"""The soak session, for seconds."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_short_soak_leaves_nothing_behind():
    script = Path(__file__).parent / "soak.py"
    done = subprocess.run(
        [sys.executable, str(script), "--seconds", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "clean"
