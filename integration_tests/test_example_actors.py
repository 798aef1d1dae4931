"""The examples of SAC and IQL: shortened runs, that go on from their checkpoints."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import re
import subprocess
import sys

from rl_record import read_run
from test_examples import ROOT


def played(name, *options):
    script = ROOT / "examples" / f"{name}.py"
    command = [sys.executable, str(script), *map(str, options)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_sac_goes_on_from_its_checkpoint(tmp_path):
    given = ["--out", tmp_path, "--no-video", "--seeds", 3]
    first = played("sac_pendulum", "--steps", 1000, *given)
    assert re.search(r"^seed 3: return -\d+\.\d over 20 episodes after 1000 steps", first, re.M)
    again = played("sac_pendulum", "--steps", 2000, "--resume", *given)
    assert "after 2000 steps" in again
    curve = read_run(tmp_path / "seed-3")["eval/return"]
    assert curve.steps.tolist() == [1000, 1000, 2000, 2000]  # twice at the end of each
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_iql_is_compared_with_its_data_and_goes_on(tmp_path):
    given = ["--out", tmp_path, "--seeds", 3]
    first = played("offline_iql", "--updates", 500, *given)
    found = re.search(r"^seed 3: return (-\d+\.\d) over 20 .*, the data's (-\d+\.\d),", first, re.M)
    assert found
    again = played("offline_iql", "--updates", 1000, "--resume", *given)
    assert f"the data's {found[2]}," in again
    assert read_run(tmp_path / "seed-3")["loss_value"].steps.tolist() == [500, 1000]
