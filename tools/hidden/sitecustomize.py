"""Hide distributions from a program and from the processes that it starts.

Python imports this file when it starts, where its folder is on PYTHONPATH. The environment variable
HIDDEN holds the names of the distributions and of their modules, with spaces between them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, DistributionFinder
from typing import Any

HIDDEN = set(os.environ.get("HIDDEN", "").split())


class HidingFinder(PathFinder):
    """Finds modules and distributions as Python does, as if the hidden ones were not installed."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The module, unless it is hidden."""
        return None if fullname in HIDDEN else super().find_spec(fullname, path, target)

    @classmethod
    def find_distributions(
        cls,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008 - as there
    ) -> Iterable[Distribution]:
        """Those that are not hidden, whose entry points libraries load."""
        found = PathFinder.find_distributions(context)
        return (one for one in found if one.metadata["Name"] not in HIDDEN)


sys.meta_path[sys.meta_path.index(PathFinder)] = HidingFinder
