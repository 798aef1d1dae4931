"""Examples see what they declare and what that brings, and nothing else that is installed."""

import subprocess
import sys
from pathlib import Path

import pytest
import run_examples

SEES = """
from importlib.metadata import distributions
from importlib.util import find_spec
print([name for name in ("packaging", "pytest", "pluggy") if find_spec(name) is not None])
print(sorted({one.metadata["Name"] for one in distributions()} & {"packaging", "pytest", "pluggy"}))
"""
HEAD = '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#     {},\n# ]\n# ///\n'


@pytest.mark.parametrize(
    ("declared", "seen"),
    [
        ('"packaging"', ["packaging"]),
        ('"pluggy", "packaging"', ["packaging", "pluggy"]),
        ('"pytest"', ["packaging", "pluggy", "pytest"]),  # which brings the others
    ],
)
def test_a_script_and_its_processes_see_what_it_declares(tmp_path, declared, seen):
    inner = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SEES!r}])\n"
    (tmp_path / "script.py").write_text(HEAD.format(declared) + SEES + inner)
    text, status = run_examples.run(tmp_path / "script.py", [])
    lines = text.splitlines()[1:]
    assert status == 0, text
    assert sorted(map(str, lines)) == sorted(2 * [str([n for n in ORDER if n in seen]), str(seen)])


ORDER = ("packaging", "pytest", "pluggy")  # as a script asks for them


def test_an_undeclared_import_fails(tmp_path):
    (tmp_path / "script.py").write_text(HEAD.format('"packaging"') + "import pluggy\n")
    text, status = run_examples.run(tmp_path / "script.py", [])
    assert status == 1
    assert "ModuleNotFoundError: No module named 'pluggy'" in text


def test_examples_declare_something_and_unknown_names_are_refused():
    examples = sorted((run_examples.ROOT / "examples").glob("*.py"))
    assert all(run_examples.declared(path) for path in examples)
    assert run_examples.FEWER_STEPS.keys() <= {path.stem for path in examples}
    program = Path(run_examples.__file__)
    done = subprocess.run(
        [sys.executable, program, "no_such"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no example no_such: there are a2c_pendulum" in done.stderr
