"""Rollouts through tensordicts: the general loop, and the reference for the fast ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_envs.env.done import Prefix, ends
from rl_envs.env.interface import Environment
from rl_envs.env.whole_number import check_whole
from rl_envs.rollouts.policy_plan import PolicyPlan, failure_note
from rl_layout import keys, refuse_shared_states


@dataclass(frozen=True)
class Request:
    """The arguments of a rollout."""

    max_steps: int
    policy: Any = None  # adds the action to a root; None for random actions
    callback: Callable[..., Any] | None = None  # called with the environment and each step
    break_when_any_done: bool = True  # stop as soon as a row is done
    break_when_all_done: bool = False  # stop as soon as every row has been done once
    set_truncated: bool = False  # mark the last step as truncated, unless it is terminated
    continues: bool = False  # begin with the surplus steps of the last rollout

    def __post_init__(self) -> None:
        check_whole(self.max_steps, 1, "max_steps")
        if self.break_when_any_done and self.break_when_all_done:
            msg = "break_when_all_done needs break_when_any_done=False: both were asked for."
            raise ValueError(msg)


def play(env: Environment, root: TensorDictBase, request: Request) -> TensorDictBase:
    """Play from a root `[*B]`, step by step through tensordicts; returns the batch `[*B, T]`."""
    policy = env.rand_action if request.policy is None else request.policy
    policy = policy.on_tensordict() if isinstance(policy, PolicyPlan) else policy
    refuse_shared_states({"policy": policy})
    groups = env.done_groups
    steps: list[TensorDictBase] = []
    ended: list[Tensor] = []
    # a policy writes to it, and it may be the caller's; roots that follow name no device
    root = root.copy().clear_device_()
    while True:
        acted = policy(root) if steps else _first_action(policy, root)
        if acted is not None and acted is not root:
            root = root.update(acted)  # it may have returned nothing but the action
        step = env.step(root)
        steps.append(step)
        if request.callback is not None:
            request.callback(env, step)
        ended = _ended(step, groups, ended)
        if len(steps) == request.max_steps or _breaks(ended, request):
            break
        root = env.maybe_reset(env.next_root(step))
    if request.set_truncated:
        steps[-1] = truncate(steps[-1], groups)
    batch = TensorDict.maybe_dense_stack(steps, len(env.batch_size))
    batch.names = [*[None] * len(env.batch_size), keys.TIME]
    return batch


def _first_action(policy: Any, root: TensorDictBase) -> TensorDictBase | None:
    """Call a policy for the first time; its errors get a note."""
    hint = (
        "the policy is called with the root, a tensordict, and returns it with the action: wrap a "
        "module on tensors in TensorDictModule(module, in_keys, out_keys)."
    )
    try:
        acted = policy(root)
    except Exception as error:
        is_module = isinstance(policy, TensorDictModuleBase)
        error.add_note(
            failure_note(policy, dict(keys.leaves(root)), root.batch_size) if is_module else hint
        )
        raise
    if acted is not None and not isinstance(acted, TensorDictBase):
        msg = f"expected a tensordict from the policy, got {type(acted).__name__}: {hint}"
        raise TypeError(msg)
    return acted


def _ended(step: TensorDictBase, groups: list[Prefix], before: list[Tensor]) -> list[Tensor]:
    """Whether each row has been done at least once, bool for each deciding group."""
    now = list(ends(step.get(keys.NEXT), groups).values())
    return [one | other for one, other in zip(before, now, strict=True)] if before else now


def _breaks(ended: list[Tensor], request: Request) -> bool:
    if request.break_when_any_done:
        return any(bool(flag.any()) for flag in ended)
    return request.break_when_all_done and all(bool(flag.all()) for flag in ended)


def truncate(step: TensorDictBase, groups: list[Prefix]) -> TensorDictBase:
    """Return a step marked as truncated, unless it is terminated; other leaves are shared."""
    marked = step.copy()
    for prefix in groups:
        place = (keys.NEXT, *prefix)
        terminated = marked.get((*place, keys.TERMINATED))
        truncated = marked.get((*place, keys.TRUNCATED)) | ~terminated
        marked.set((*place, keys.TRUNCATED), truncated)
        marked.set((*place, keys.DONE), torch.ones_like(terminated))
    return marked


def without_steps(policy: Any) -> Any:
    """Replace `env.rand_step` by None, random actions: the rollout itself takes the steps."""
    takes_steps = getattr(policy, "__name__", None) == "rand_step" and hasattr(policy, "__self__")
    return None if takes_steps else policy


def on_own_device(policy: Any, device: torch.device) -> Any:
    """Wrap a policy on another device: roots are moved to it, and its outputs back."""
    # a callable without parameters has no device of its own
    inner = policy if isinstance(policy, nn.Module) else getattr(policy, "policy", None)
    owned = chain(inner.parameters(), inner.buffers()) if isinstance(inner, nn.Module) else ()
    here = next((one.device for one in owned), device)
    if here == device:
        return policy

    def act(root: TensorDictBase) -> TensorDictBase:
        given = root.to(here)
        acted = policy(given)
        back: TensorDictBase = (given if acted is None else acted).to(device)
        return back.clear_device_()

    return act


def copy_to_out(out: TensorDictBase, batch: TensorDictBase) -> TensorDictBase:
    """Copy a batch `[*B, T]` into the first T steps of `out`; returns a view of these."""
    # everything is checked before the first write: a refused batch leaves `out` as it was
    room, num_steps = out.batch_size, batch.batch_size[-1]
    if room[:-1] != batch.batch_size[:-1] or not room or room[-1] < num_steps:
        sizes = (*batch.batch_size[:-1], num_steps)
        msg = f"out must have batch size {sizes}, or more steps: got {tuple(room)}."
        raise ValueError(msg)
    first = out[..., :num_steps]
    there, made = dict(keys.leaves(first)), dict(keys.leaves(batch))
    if there.keys() != made.keys():
        names = sorted(str(keys.as_key(key)) for key in there.keys() ^ made.keys())
        msg = f"out and the batch differ in {names}: make out as the batch is, with zeros_like."
        raise KeyError(msg)
    for key, value in made.items():
        if there[key].dtype != value.dtype:
            msg = f"out {keys.as_key(key)!r}: expected {value.dtype}, got {there[key].dtype}."
            raise TypeError(msg)
        if there[key].shape != value.shape:
            found, expected = tuple(there[key].shape), tuple(value.shape)
            msg = f"out {keys.as_key(key)!r}: expected shape {expected}, got {found}."
            raise ValueError(msg)
    for key, value in made.items():
        there[key].copy_(value)
    first.names = batch.names
    return first
