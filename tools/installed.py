"""Check what is installed of these packages, from inside the environment.

    python tools/installed.py rl-value rl-layout     these and no others, copies of their source

Importing the first one may load no heavy library: the others of `--heavy` are looked for.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import sysconfig
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KNOWN = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}


def surplus(expected: set[str]) -> list[str]:
    """Unwanted and missing packages of ours, one sentence each."""
    found = KNOWN & {dist.metadata["Name"] for dist in metadata.distributions()}
    return [
        *(f"{name} came along, which is not asked for" for name in sorted(found - expected)),
        *(f"{name} is not installed" for name in sorted(expected - found)),
    ]


def files(folder: Path) -> set[Path]:
    """The files of a package folder, but those that Python compiled."""
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in inside if "__pycache__" not in path.parts}


def differences(source: Path, copy: Path) -> list[str]:
    """In what an installed folder is no copy of its source, one sentence each."""
    ours, theirs = files(source), files(copy)
    both = sorted(map(str, ours & theirs))
    _, changed, unread = filecmp.cmpfiles(source, copy, both, shallow=False)
    return [
        *(f"{path} is not in the wheel" for path in sorted(ours - theirs)),
        *(f"{path} is in the wheel alone" for path in sorted(theirs - ours)),
        *(f"{path} differs from its source" for path in (*changed, *unread)),
    ]


def heavy_imports(module: str, heavy: set[str]) -> list[str]:
    """Heavy libraries that an import loads, as one sentence."""
    before = set(sys.modules)
    import_module(module)
    loaded = sorted((set(sys.modules) - before) & heavy)
    return [f"importing {module} also imports {', '.join(loaded)}"] if loaded else []


def main() -> None:
    """Check the environment that runs this."""
    parser = argparse.ArgumentParser(description="Check what is installed of these packages.")
    parser.add_argument("packages", nargs="+", help="all that may be installed, first the wanted")
    parser.add_argument("--heavy", nargs="*", default=[], help="what the first may not import")
    options = parser.parse_args()
    problems = surplus(set(options.packages))
    for name in options.packages:
        module = name.replace("-", "_")
        copy = Path(sysconfig.get_path("purelib")) / module
        problems += differences(ROOT / "packages" / name / "src" / module, copy)
    if find_spec("tensordict") is not None:  # what it loads, every package above it does
        import_module("tensordict")
    problems += heavy_imports(options.packages[0].replace("-", "_"), set(options.heavy))
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
