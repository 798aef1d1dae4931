"""Every task of the repository. `nox` runs what a push needs; `nox -l` lists the rest."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.11"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests", "wheel", "integration", "examples", "docs"]

ROOT = Path(__file__).parent
PACKAGES = {
    path.parent.name: nox.project.load_toml(path)
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
EXAMPLES = sorted(path.stem for path in ROOT.glob("examples/*.py"))
HEAVY = ["gymnasium", "h5py", "hypothesis", "matplotlib", "pandas", "pytest", "ray", "scipy"]
HEAVY += ["torchrl", "torchvision", "tqdm", "triton"]
each_package = nox.parametrize("package", [nox.param(n, id=n, tags=[n]) for n in PACKAGES])


def module(name: str) -> str:
    """The import name of a package."""
    return name.replace("-", "_")


def requirements(name: str, *extras: str) -> list[Requirement]:
    """What a package declares, with some or all of its extras."""
    project = PACKAGES[name]["project"]
    optional = project.get("optional-dependencies", {})
    found = list(project.get("dependencies", []))
    found += [line for extra in extras for line in optional[extra]]
    return [Requirement(line) for line in found]


def below(name: str) -> list[str]:
    """Our packages that `name` needs, lowest first."""
    found: list[str] = []
    for requirement in requirements(name):
        if requirement.name in PACKAGES:
            found += [*below(requirement.name), requirement.name]
    return list(dict.fromkeys(found))


def install(session: nox.Session, names: list[str], *others: str, group: str = "test") -> None:
    """Install packages editable, beside their test or bench groups and `others`."""
    local = [argument for name in names for argument in ("-e", f"packages/{name}")]
    session.install("-c", "constraints.txt", *local, *others, env={"PIP_CONSTRAINT": ""})


def group(name: str, which: str = "test") -> list[str]:
    """A dependency group of one package."""
    return list(nox.project.dependency_groups(PACKAGES[name], which))
