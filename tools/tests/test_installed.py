import installed
import pytest


@pytest.fixture
def copies(tmp_path):
    for name in ("source", "copy"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "module.py").write_text("x = 1\n")
    return tmp_path / "source", tmp_path / "copy"


def test_a_copy_of_the_source_has_no_differences(copies):
    (copies[1] / "__pycache__").mkdir()
    (copies[1] / "__pycache__" / "module.pyc").write_text("compiled")
    assert installed.differences(*copies) == []


def test_changed_missing_and_surplus_files_are_named(copies):
    source, copy = copies
    (source / "py.typed").touch()
    (copy / "stray.py").touch()
    (copy / "inner" / "module.py").write_text("x = 2\n")
    assert installed.differences(source, copy) == [
        "py.typed is not in the wheel",
        "stray.py is in the wheel alone",
        "inner/module.py differs from its source",
    ]


def test_an_import_that_loads_a_heavy_library_is_named(tmp_path, monkeypatch):
    (tmp_path / "weighty.py").touch()
    (tmp_path / "loader.py").write_text("import weighty\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.heavy_imports("loader", {"weighty"}) == [
        "importing loader also imports weighty"
    ]
