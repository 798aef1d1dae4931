"""Modules that need an extra."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def import_with_hypothesis(module: str, what: str, instead: str) -> ModuleType:
    """Import a module of test tools; without hypothesis, say what needs it and what does not."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        package = module.partition(".")[0].replace("_", "-")
        msg = (
            f"{what} and hypothesis is not installed: pip install '{package}[testing]', or "
            f"{instead}."
        )
        raise ImportError(msg) from error
