"""One site for all packages; the API pages are written from the packages on disk."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from sphinx.application import Sphinx

from rl_layout import draw_layout

project = "RL data packages"
author = "The rl-packages developers"
copyright = "2026, the rl-packages developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
exclude_patterns = ["_build", "packages"]
suppress_warnings = ["myst.header"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures show types
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes are listed once, on their class
# names of other libraries: their inventories are not fetched, so a build needs no network
nitpick_ignore_regex = [
    ("py:.*", r"(torch|tensordict|numpy|np|collections|typing|hypothesis|weakref|pathlib)\b.*"),
    ("py:.*", r"[A-Za-z_]+"),  # bare names in signatures and in `Raises`
    ("py:.*", r".*\s.*"),  # prose before a colon, taken for a type
]

PAGE = """# {name}: every public name

{modules}"""
MODULE = """## {module}

```{{eval-rst}}
.. automodule:: {module}
   :members:{imported}
```
"""


def section(of: str, folder: Path) -> str:
    """The API of one module; a package's own names are imported into it.

    Names of another of our packages are documented there.
    """
    if "." in of and not (folder / of.rpartition(".")[2]).is_dir():
        return MODULE.format(module=of, imported="\n   :ignore-module-all:")
    module = import_module(of)
    # what a module imports only when asked for is among its members once it was
    found = {name: getattr(module, name) for name in getattr(module, "__all__", [])}
    vars(module).update(found)
    others = [
        name
        for name, value in found.items()
        if (home := getattr(value, "__module__", of).split(".")[0]).startswith("rl_")
        and home != of.split(".")[0]
    ]
    left_out = f"\n   :exclude-members: {', '.join(others)}" if others else ""
    return MODULE.format(module=of, imported=f"\n   :imported-members:{left_out}")


def draw(page: Path, into: Path) -> None:
    """Save the drawings of a page: run its first code block and draw the batches it defines."""
    made: dict[str, object] = {"print": lambda *_, **__: None}
    exec(page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], made)
    into.mkdir(exist_ok=True)
    for name in ("collected", "sample"):
        draw_layout(made[name]).save(into / f"{name}.png")


here = Path(__file__).parent
# modules that are used by their own name
ALSO = tomllib.loads((here.parent / "pyproject.toml").read_text())["tool"]["house"]["documented"]
draw(here / "conventions.md", here / "_drawn")
(here / "api").mkdir(exist_ok=True)
for declared in sorted((here.parent / "packages").glob("*/pyproject.toml")):
    name = declared.parent.name
    module = name.replace("-", "_")
    source = declared.parent / "src" / module
    modules = [module, *(f"{module}.{also}" for also in ALSO if any(source.glob(f"{also}*")))]
    page = PAGE.format(name=name, modules="\n".join(section(each, source) for each in modules))
    (here / "api" / f"{name}.md").write_text(page, encoding="utf-8")


def link_glossary(_app: Sphinx, name: str, source: list[str]) -> None:
    """End every page with a link to the glossary."""
    if name != "glossary":
        source[0] += "\n\n---\n\nTerms are defined in the {doc}`/glossary`.\n"


def skip_foreign(*given: object) -> bool | None:
    """Leave out what tensordict writes into a tensorclass: its docstrings name its own pages."""
    _app, what, _name, member, *_ = given
    foreign = str(getattr(member, "__module__", None)).startswith("tensordict")
    return True if what == "class" and foreign else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("source-read", link_glossary)
