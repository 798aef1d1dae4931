"""One site for all packages; the API pages are written from the packages on disk."""

from __future__ import annotations

from pathlib import Path

project = "rl packages"
author = "The rl-packages developers"
copyright = "2026, the rl-packages developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types stand in the signatures
napoleon_google_docstring = True
napoleon_use_rtype = False
# names of other libraries: their inventories are not fetched, so that a build needs no network
nitpick_ignore_regex = [
    ("py:.*", r"(torch|tensordict|numpy|np|collections|typing|hypothesis|weakref|pathlib)\b.*"),
    ("py:.*", r"[A-Za-z_]+"),  # bare names in signatures and in `Raises`
]

API = """# {name}

```{{eval-rst}}
.. automodule:: {module}
   :members:
   :imported-members:
```
"""

here = Path(__file__).parent
(here / "api").mkdir(exist_ok=True)
for folder in sorted((here.parent / "packages").glob("*/pyproject.toml")):
    name = folder.parent.name
    page = API.format(name=f"{name}: every public name", module=name.replace("-", "_"))
    (here / "api" / f"{name}.md").write_text(page, encoding="utf-8")
