"""Write the import rules of the layers, and check what every package folder must hold.

    python tools/layers.py contracts.toml gymnasium torchrl ...

The rules are for import-linter: a package imports only from layers below its own, and of the
libraries that are named only those that it declares. Exits with 1 where a folder lacks something.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGES: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}


def module(name: str) -> str:
    """The import name of a package."""
    return name.replace("-", "_")


def declared(name: str, *, extras: bool) -> list[str]:
    """The distributions that a package declares, with its optional ones on request."""
    project = PACKAGES[name]["project"]
    lines = list(project.get("dependencies", []))
    if extras:
        lines += [
            line for extra in project.get("optional-dependencies", {}).values() for line in extra
        ]
    return [Requirement(line).name for line in lines]


def contracts(heavy: list[str]) -> str:
    """The import rules, from the layer and the dependencies that each package declares."""
    rows: dict[int, list[str]] = {}
    for name, project in PACKAGES.items():
        rows.setdefault(project["tool"]["house"]["layer"], []).append(module(name))
    layers = [" | ".join(rows[number]) for number in sorted(rows, reverse=True)]
    lines = [
        "[tool.importlinter]",
        f"root_packages = {[module(n) for n in PACKAGES]}",
        "include_external_packages = true",
        "[[tool.importlinter.contracts]]",
        'name = "A package imports only from layers below its own"',
        'type = "layers"',
        f"layers = {layers}",
    ]
    for name in PACKAGES:
        allowed = [module(distribution) for distribution in declared(name, extras=True)]
        lines += [
            "[[tool.importlinter.contracts]]",
            f'name = "{name} imports only heavy libraries that it declares"',
            'type = "forbidden"',
            "allow_indirect_imports = true",
            f"source_modules = {[module(name)]}",
            f"forbidden_modules = {[one for one in heavy if one not in allowed]}",
        ]
    return "\n".join(lines)


def problems() -> list[str]:
    """What is wrong in the package folders, one sentence each."""
    found = []
    for name, project in PACKAGES.items():
        folder, layer = ROOT / "packages" / name, project["tool"]["house"]["layer"]
        wanted = ["README.md", "CHANGELOG.md", "LICENSE", "changes", f"src/{module(name)}/py.typed"]
        found += [f"{name}: {path} is missing" for path in wanted if not (folder / path).exists()]
        if (folder / "LICENSE").read_text() != (ROOT / "LICENSE").read_text():
            found.append(f"{name}: LICENSE differs from the root's: copy it")
        for other in set(declared(name, extras=False)) & set(PACKAGES):
            if PACKAGES[other]["tool"]["house"]["layer"] >= layer:
                found.append(f"{name}: depends on {other}, which is not in a layer below")
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(contracts(sys.argv[2:]), encoding="utf-8")
    if lacks := problems():
        sys.exit("\n".join(lacks))
