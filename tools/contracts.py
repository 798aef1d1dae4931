"""Check how modules import each other, and where they make tensors.

    python tools/contracts.py             print what breaks a rule; exit with 1 where something does

Packages import from each other only what is exported: in the `__init__`, or in a module that
`[tool.house] public` of the root's pyproject.toml lists. No modules import each other in a circle;
imports that only type checkers see count as well. No module reads private fields that it does not
define; those of torch and tensordict are read in rl-tensordict alone. Tensors are made on a device
that the call names, not on torch's default one; `device=None` says that the default is meant.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    path.parent.name.replace("-", "_"): path.parent / "src"
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
# begin with an underscore and stand in the documentation of Python or IPython
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_make", "_replace"}
DOCUMENTED |= {"_repr_html_", "_repr_png_"}
# of torch, what makes a tensor of no other on the default device
FACTORIES = {"arange", "as_tensor", "asarray", "empty", "empty_permuted", "empty_strided", "eye"}
FACTORIES |= {"full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm"}
FACTORIES |= {"scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"}
OF_OTHERS = "rl_tensordict"  # reads what torch and tensordict keep to themselves, for all others


def house(name: str) -> set[str]:
    """A list of modules in the root's pyproject.toml: `public` for siblings, `documented`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return set(tomllib.load(file)["tool"]["house"][name])


def file_of(module: str, sources: Path) -> Path:
    """The file of a module, of a package its `__init__`."""
    folder = sources.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def offered(path: Path) -> set[str]:
    """What a module offers: its `__all__`, or else what it defines without an underscore."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = {target.id for target in targets if isinstance(target, ast.Name)}
            if "__all__" in found and node.value is not None:
                return set(ast.literal_eval(node.value))
            names |= found
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return {name for name in names if not name.startswith("_")}


def taken(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """Line, module and name of every absolute import; no name where a module is imported whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)


def unoffered(packages: dict[str, Path], public: set[str]) -> list[str]:
    """Imports of what a sibling does not offer, one sentence each."""
    known = {name: offered(file_of(name, sources)) for name, sources in packages.items()}
    known.update({m: offered(file_of(m, packages[m.split(".")[0]])) for m in public})
    found = []
    for package, sources in packages.items():
        for path in sorted(sources.rglob("*.py")):
            for line, module, name in taken(ast.parse(path.read_text(encoding="utf-8"))):
                owner = module.split(".")[0]
                if owner == package or owner not in packages:
                    continue
                names = known.get(module, set())
                whole = module in known if name is None else f"{module}.{name}" in public
                if not whole and name not in names:
                    what = module if name is None else f"{module}.{name}"
                    found.append(f"{path.relative_to(sources)}:{line}: {owner} offers no {what}")
    return found


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore and no documentation offers it."""
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def private_reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every read of a private field that a module does not define itself."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    own = {node.name for node in ast.walk(tree) if isinstance(node, definitions)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign):
            own.add(ast.unparse(node.target).rpartition(".")[2])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            if ast.unparse(node.value) not in ("self", "cls", "super()"):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, a.name) for a in node.names if is_private(a.name))


def private(packages: dict[str, Path]) -> list[str]:
    """Reads of private fields of other modules, one sentence each."""
    return [
        f"{path.relative_to(sources)}:{line}: {name} is private"
        for package, sources in packages.items()
        if package != OF_OTHERS
        for path in sorted(sources.rglob("*.py"))
        for line, name in private_reads(ast.parse(path.read_text(encoding="utf-8")))
    ]


def unplaced(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every factory of torch that is called without a device, or not called."""
    placed = {
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and {"device", "out"} & {word.arg for word in node.keywords}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FACTORIES and node not in placed:
            if ast.unparse(node.value) == "torch":
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            yield from ((node.lineno, a.name) for a in node.names if a.name in FACTORIES)


def without_device(packages: dict[str, Path]) -> list[str]:
    """Tensors that are made on torch's default device, one sentence each."""
    return [
        f"{path.relative_to(sources)}:{line}: {name} names no device"
        for sources in packages.values()
        for path in sorted(sources.rglob("*.py"))
        for line, name in unplaced(ast.parse(path.read_text(encoding="utf-8")))
    ]


def circles(packages: dict[str, Path]) -> list[list[str]]:
    """Modules that import each other in a circle."""
    import grimp
    import networkx

    graph = grimp.build_graph(*packages, cache_dir=None)
    arrows = [(m, to) for m in graph.modules for to in graph.find_modules_directly_imported_by(m)]
    parts = networkx.strongly_connected_components(networkx.DiGraph(arrows))
    return sorted(sorted(part) for part in parts if len(part) > 1)


def main() -> None:
    """Print everything that breaks a rule."""
    problems = unoffered(PACKAGES, house("public"))
    problems += private(PACKAGES)
    problems += without_device(PACKAGES)
    problems += [f"a circle of imports: {', '.join(part)}" for part in circles(PACKAGES)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
