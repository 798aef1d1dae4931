"""Attributes that an environment lacks, and those inside it have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def is_own(env: object, name: str) -> bool:
    """Whether a name is not forwarded: it is private, of the class, or asked of a closed one."""
    return name.startswith("_") or hasattr(type(env), name) or vars(env).get("is_closed", True)


def attributes_of(outer: str, envs: Sequence[Any], name: str) -> list[Any]:
    """Get an attribute of each environment; the error for a missing one names both classes."""
    try:
        return [getattr(env, name) for env in envs]
    except AttributeError as error:
        inner = type(envs[0]).__name__
        msg = f"{outer} has no attribute {name!r}, and nor has the {inner} inside: {error}"
        raise AttributeError(msg, name=name) from error
