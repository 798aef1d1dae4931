"""What a spec says of actions; any object with its attributes is one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout.internals import array_of
from rl_tensordict import NestedKey, UnfitValue, as_key, as_tuple, find
from rl_tensordict.types import KeyPath
from rl_value.scan.block_scan import is_transformed

SLACK = 1e-4  # of the distance of bounds: a rounding beyond one is none


def actions_of(actor: TensorDictModuleBase, action: NestedKey) -> list[KeyPath]:
    """Keys of an action: the usual one, and those of groups that an actor writes under its name."""
    # `set_keys` says which of them it is, after the loss was made
    usual = as_tuple(action)
    written = [key for key in map(as_tuple, actor.out_keys) if key[-1] == usual[-1]]
    return list(dict.fromkeys([usual, *written]))


def spec_of(given: Any, actor: TensorDictModuleBase, action: NestedKey) -> Any:
    """The spec of an action, by itself or in a composite; None if no argument names it."""
    spec = getattr(actor, "spec", None) if given is None else given
    if spec is None or not hasattr(spec, "keys"):
        return spec
    for key in actions_of(actor, action):
        with suppress(KeyError):
            return spec[as_key(key)]
    return spec[as_key(as_tuple(action))]


def automatic_entropy(spec: Any) -> float | None:
    """-dim A, of one action whatever the batch of the spec."""
    return None if spec is None else -float(spec.shape[-1] if len(spec.shape) else 1)


def bounds_of(spec: Any) -> tuple[Tensor, Tensor] | None:
    """The least and the greatest action, of one member of a vector; None if there are none."""
    space = getattr(spec, "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        return None
    if not (bool(low.isfinite().all()) and bool(high.isfinite().all())):
        return None
    # the spec of a vector has a batch, whose members have the same bounds
    while low.ndim > 1 and bool((low == low[:1]).all()) and bool((high == high[:1]).all()):
        low, high = low[0], high[0]
    return low, high


def refuse_outside(
    batch: TensorDictBase,
    action: NestedKey,
    bounds: tuple[Tensor, Tensor],
    counted: Tensor | None,
) -> None:
    """Raise for stored actions that the spec does not have; no device is waited for."""
    taken = find(batch, as_tuple(action))
    if is_transformed() or not isinstance(taken, Tensor) or not taken.is_cpu or not taken.numel():
        return
    low, high = (bound.to(taken.device, taken.dtype) for bound in bounds)
    shown = taken.detach()
    if _are_within(shown, low, high):
        return
    slack = SLACK * (high - low)
    wrong = ((shown < low - slack) | (shown > high + slack)).flatten(batch.ndim).any(-1)
    expected = f"{low.tolist()} to {high.tolist()}"
    _refuse(wrong, counted, shown, action, "outside of its spec", expected, "pass their spec")


def refuse_no_choice(taken: Tensor, action: NestedKey, counted: Tensor | None) -> None:
    """Raise for stored one-hot actions ``[*B, n]`` that are none; no device is waited for."""
    if is_transformed() or not taken.is_cpu or taken.requires_grad:
        return
    wrong = (taken != 0).sum(-1) != 1
    expected = f"one 1 among {taken.shape[-1]}"
    _refuse(wrong, counted, taken, action, "no choice", expected, "set action_space")


def _refuse(  # noqa: PLR0913 - the parts of one message
    wrong: Tensor,
    counted: Tensor | None,
    taken: Tensor,
    action: NestedKey,
    fault: str,
    expected: str,
    cure: str,
) -> None:
    """Raise where an action is `wrong` in a counted step: it says how often, where and what."""
    if counted is not None:  # [*B, ...], of which any part that counts does
        wide = counted.reshape(*counted.shape, *(1,) * (wrong.ndim + 1 - counted.ndim))
        wrong = wrong & wide.flatten(wrong.ndim).any(-1)
    if not bool(wrong.any()):
        return
    first = tuple(wrong.nonzero()[0].tolist())
    msg = (
        f"{as_key(as_tuple(action))!r} is {fault} in {int(wrong.sum())} of {wrong.numel()} steps, "
        f"first in {first}: expected {expected}, got {taken[first].tolist()}. Store actions as "
        f"the actor gives them, or {cure}."
    )
    raise UnfitValue(msg)


def _are_within(shown: Tensor, low: Tensor, high: Tensor) -> bool:
    """Whether floats are all between bounds, by numpy: its calls take a third of torch's time."""
    if shown.dtype not in (torch.float32, torch.float64) or not low.is_cpu:
        return False
    values, least, most = array_of(shown), array_of(low), array_of(high)
    slack = SLACK * (most - least)
    return bool((values >= least - slack).all() and (values <= most + slack).all())


def uniform_actions(bounds: tuple[Tensor, Tensor], like: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Actions ``[num, *B, A]`` drawn evenly between bounds, and log-densities ``[..., 1]``."""
    low, high = (bound.to(like.device, like.dtype) for bound in bounds)
    drawn = torch.rand(num, *like.shape, dtype=like.dtype, device=like.device)
    log_range = (high - low).log()  # [], [A], or [*G, A] where members have bounds of their own
    wide = log_range.expand(*log_range.shape[:-1], like.shape[-1])
    return low + (high - low) * drawn, -wide.sum(-1, keepdim=True)
