"""What of tensordict's internals this version has; looked up once, where the package is imported.

The fast ways are taken only where the internals are what they were written for. Where one is
missing or differs, its users take the public way, which is slower and does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDict, TensorDictBase

new_unsafe: Callable[..., TensorDict] | None = getattr(TensorDict, "_new_unsafe", None)
"""tensordict's constructor without checks, None if there is none."""

HAS_STORE = isinstance(getattr(TensorDict({}, []), "_tensordict", None), dict)
"""Whether the entries of a plain tensordict are in a dictionary of its own."""

Store: Any = type(getattr(TensorDict({}, []), "_tensordict", {}))
"""The type of that dictionary."""

HAS_NAMES_FLAG = hasattr(TensorDictBase, "_has_names")
"""Whether a tensordict tells, without listing them, that its dimensions have names."""


def is_same(one: Any, other: Any) -> bool:
    """Whether two tensordicts of equal entries have the same attributes."""
    ours, theirs = vars(one), vars(other)
    return type(ours.get("_tensordict")) is type(theirs.get("_tensordict")) and ours == theirs
