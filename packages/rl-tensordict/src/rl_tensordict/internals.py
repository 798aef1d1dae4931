"""What of tensordict's internals this version has; looked up once, where the package is imported.

The fast ways are taken only with the internals that they were written for. Where one is
missing or differs, its users take the public way, which is slower and does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential

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


has_global_hooks: Callable[[], bool] = getattr(
    torch.nn.modules.module, "_has_any_global_hook", lambda: True
)
"""Whether calls of modules have hooks that are registered for all of them."""

# what `forward` of tensordict's modules hands on to; a class may replace it
_call = getattr(TensorDictModule, "_call_module", None)
_write = getattr(TensorDictModule, "_write_to_tensordict", None)
_run_part = getattr(TensorDictSequential, "_run_module", None)


def is_stock_module(kind: Any) -> bool:
    """Whether instances of a class read, call what they wrap and write, as tensordict's do."""
    return (
        kind.forward is TensorDictModule.forward
        and getattr(kind, "_call_module", None) is _call
        and getattr(kind, "_write_to_tensordict", None) is _write
    )


def is_stock_sequence(kind: Any) -> bool:
    """Whether instances of a class call one module after another, as tensordict's sequence does."""
    return (
        kind.forward is TensorDictSequential.forward
        and getattr(kind, "_run_module", None) is _run_part
    )
