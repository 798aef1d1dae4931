"""How processes start: which methods there are, and what their server imports for all."""

import os
import subprocess
import sys

import pytest

from rl_workers import context_of
from rl_workers.start_methods import clear_unset_modes

IMPORTS = """
import multiprocessing.forkserver, sys
from rl_workers import context_of

def probe(pipe):
    pipe.send([name in sys.modules for name in ("rl_workers", "wave", "torch")])

if __name__ == "__main__":
    context = context_of(None, preload=["wave"])
    near, far = context.Pipe()
    process = context.Process(target=probe, args=(far,))
    process.start()
    print(near.recv())
    process.join()
"""


def test_a_start_method_is_taken_by_its_name():
    assert context_of("spawn").get_start_method() == "spawn"
    assert context_of(None).get_start_method() == "forkserver"


def test_an_unknown_start_method_is_refused():
    with pytest.raises(ValueError, match=r"must be one of \[.*'fork'.*\], got 'thread'"):
        context_of("thread")


def test_a_text_is_no_list_of_modules():
    with pytest.raises(TypeError, match=r"pass \['wave'\]"):
        context_of(None, preload="wave")


def test_the_server_imports_the_package_and_what_is_preloaded(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IMPORTS)
    told = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=120
    )
    assert told.stdout == "[True, True, False]\n"


def test_modes_that_tensordict_left_unset_do_not_reach_new_processes(monkeypatch):
    monkeypatch.setenv("LIST_TO_STACK", "None")
    monkeypatch.setenv("LAZY_LEGACY_OP", "True")
    clear_unset_modes()
    assert "LIST_TO_STACK" not in os.environ
    assert os.environ["LAZY_LEGACY_OP"] == "True"
