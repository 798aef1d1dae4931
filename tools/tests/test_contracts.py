import contracts
import pytest


@pytest.fixture
def packages(tmp_path):
    """Two packages: `lower` exports `f` by name, and `upper` takes from it."""
    for name in ("lower", "upper"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").touch()
    lower = tmp_path / "lower" / "lower"
    (lower / "__init__.py").write_text('from lower.a import f\n\n__all__ = ["f"]\n')
    (lower / "a.py").write_text("def f(): ...\ndef _hidden(): ...\n")
    return {name: tmp_path / name for name in ("lower", "upper")}


def found(packages, line, public=()):
    (packages["upper"] / "upper" / "b.py").write_text(f"def late():\n    {line}\n")
    return contracts.unoffered(packages, set(public))


@pytest.mark.parametrize("line", ["from lower import f", "import lower", "from upper.c import g"])
def test_an_exported_name_and_an_own_module_may_be_imported(packages, line):
    assert found(packages, line) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("from lower.a import f", "lower.a.f"),
        ("from lower import a", "lower.a"),
        ("import lower.a", "lower.a"),
    ],
)
def test_a_submodule_that_is_not_public_may_not_be_imported(packages, line, what):
    assert found(packages, line) == [f"upper/b.py:2: lower offers no {what}"]


def test_a_public_module_may_be_imported_but_not_its_private_names(packages):
    assert found(packages, "from lower.a import f", ["lower.a"]) == []
    assert found(packages, "from lower import a", ["lower.a"]) == []
    assert found(packages, "import lower.a", ["lower.a"]) == []
    assert len(found(packages, "from lower.a import _hidden", ["lower.a"])) == 1


def test_a_circle_is_found_through_imports_for_typing_alone(packages, monkeypatch):
    upper = packages["upper"] / "upper"
    (upper / "b.py").write_text("from upper.c import g\n")
    (upper / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import upper.b\n"
    )
    for folder in packages.values():
        monkeypatch.syspath_prepend(folder)
    assert contracts.circles(packages) == [["upper.b", "upper.c"]]


@pytest.mark.parametrize("line", ["a._hidden", "from upper.c import _hidden"])
def test_a_private_field_of_another_module_may_not_be_read(packages, line):
    found(packages, line)
    what = line.split("import ")[-1]
    assert contracts.private(packages) == [f"upper/b.py:2: {what} is private"]


@pytest.mark.parametrize("line", ["self._own", "a._replace()", "a.__dict__", "b._set = 3; b._set"])
def test_own_and_documented_fields_may_be_read(packages, line):
    found(packages, line)
    assert contracts.private(packages) == []


@pytest.mark.parametrize(
    "line", ["torch.zeros(2)", "map(torch.ones, sizes)", "from torch import empty"]
)
def test_tensors_are_not_made_on_the_default_device(packages, line):
    found(packages, line)
    name = next(n for n in ("empty", "torch.zeros", "torch.ones") if n in line)
    assert contracts.without_device(packages) == [f"upper/b.py:2: {name} names no device"]


@pytest.mark.parametrize(
    "line",
    ["torch.zeros(2, device=None)", "torch.rand(2, out=a)", "torch.from_numpy(a)", "np.ones(2)"],
)
def test_a_device_may_be_named_in_each_way(packages, line):
    found(packages, line)
    assert contracts.without_device(packages) == []
