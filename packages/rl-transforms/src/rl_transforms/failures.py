"""Error messages of failed calls: the transform, the method, and an argument of a wrong type.

Arguments are inspected after a failure only, so calls that succeed pay for no checks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Composite, TensorSpec
from rl_tensordict import add_notes
from rl_tensordict.arguments import shown

TENSORDICT = (TensorDictBase, "a tensordict")
COMPOSITE = (Composite, "a Composite spec")
KINDS: dict[str, tuple[Any, str]] = {  # of arguments, by their names
    "batch": TENSORDICT,
    "root": TENSORDICT,
    "after": TENSORDICT,
    "request": TENSORDICT,
    "last": (TensorDictBase | None, "a tensordict or None"),
    "mask": (Tensor | None, "a bool tensor or None"),
    "spec": COMPOSITE,
    "place": (str, "'environment', 'worker' or 'buffer'"),
    "value": (Tensor, "a tensor"),
    "state": (Mapping, "a state that get_extra_state returned"),
}
METHODS = (
    "forward",
    "inv",
    "reset",
    "before_reset",
    "step",
    "rows",
    "apply_leaf",
    "invert_leaf",
    "leaf_spec",
    "inverse_leaf_spec",
    "transform_observation_spec",
    "transform_action_spec",
    "transform_reward_spec",
    "transform_done_spec",
    "transform_state_spec",
    "get_extra_state",
    "set_extra_state",
    "check_place",
)


def explain_failures(kind: type) -> None:
    """Wrap the methods that a class of transforms defines: their errors name the call."""
    for name in METHODS:
        method = vars(kind).get(name)
        if inspect.isfunction(method) and not hasattr(method, "__wrapped__"):
            setattr(kind, name, add_notes(_explain)(method))


def _explain(
    error: Exception, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise a TypeError for an argument of a wrong type; otherwise add a note, once."""
    if getattr(error, "__notes__", None):  # a call inside this one has added its note
        return
    name = f"{type(args[0]).__name__}.{method.__name__}"
    try:
        arguments = inspect.signature(method).bind(*args, **kwargs).arguments
    except TypeError:  # the wrong number of arguments: Python's message says it
        return
    named = list(arguments.items())[1:]
    for argument, value in named:
        kind, expected = KINDS.get(argument, (object, ""))
        if argument == "spec" and method.__name__.endswith("leaf_spec"):
            kind, expected = TensorSpec, "a spec"
        if not isinstance(value, kind):
            msg = f"{name}: {argument}: expected {expected}, got {shown(value)}."
            raise TypeError(msg) from error
    error.add_note(f"in {name}({', '.join(f'{arg}={_brief(value)}' for arg, value in named)})")


def _brief(value: Any) -> str:
    if isinstance(value, TensorDictBase):
        return f"a tensordict {list(value.batch_size)}"
    return shown(value)
