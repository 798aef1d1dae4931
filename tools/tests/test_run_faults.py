import pytest
import run_faults


def test_all_scripts_exist_and_share_the_seconds():
    found = run_faults.commands(60.0)
    assert all((run_faults.FOLDER / script).exists() for script, *_ in found)
    seconds = sum(float(options[options.index("--seconds") + 1]) for options in found)
    assert seconds == pytest.approx(60)
    assert len([script for script, *_ in found if script == "fuzz.py"]) > 10
