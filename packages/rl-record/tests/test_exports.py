"""What the package exports is imported when it is asked for."""

import subprocess
import sys
from importlib import import_module

import pytest

import rl_record


def test_every_exported_name_is_found():
    for name in rl_record.__all__:
        assert getattr(rl_record, name), name
    assert set(rl_record.__all__) <= set(dir(rl_record))


def test_look_is_the_function_whatever_is_imported_later():
    import_module("rl_record.look.view")
    assert callable(rl_record.look)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Recorder'"):
        _ = rl_record.Recorder


def test_the_package_alone_imports_nothing_that_takes_long():
    told = "import sys, rl_record; print({'torch', 'tensordict', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
