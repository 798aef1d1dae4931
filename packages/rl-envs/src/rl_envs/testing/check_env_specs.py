"""Comparison of an environment with its specs; faults are listed by key."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from rl_envs.env.env import EnvBase
from rl_envs.env.spec_leaves import leaves_of
from rl_layout import keys
from rl_specs import Composite, StackedComposite
from rl_tensordict.arguments import check_type, check_whole


def check_env_specs(env: EnvBase, num_steps: int = 3, seed: int | None = None) -> None:
    """Check that an environment does what its specs say.

    Plays a few random steps and compares every entry, at the root and under `"next"`, with its
    spec: presence, shape, dtype, device, domain. Entries without a spec are faults as well. All
    faults are listed at once.

    Args:
        env: any environment. It is reset and stepped.
        num_steps: how many steps to play.
        seed: seed it so first; not at all where None.

    Raises:
        AssertionError: something differs. Each line names the key, what was expected and what came.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> check_env_specs(CountingEnv())
    """
    check_type("env", env, EnvBase, "an environment")
    check_whole("num_steps", num_steps, 1)
    if seed is not None:
        env.set_seed(seed)
    checking, env.check_values = env.check_values, False
    faults: dict[str, None] = {}
    try:
        _play(env, num_steps, faults)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        faults[f"{type(error).__name__}: {error}"] = None
    finally:
        env.check_values = checking
    if faults:
        msg = f"{type(env).__name__} does not do what its specs say:\n" + "\n".join(
            f"- {fault}" for fault in faults
        )
        raise AssertionError(msg)


def _play(env: EnvBase, num_steps: int, faults: dict[str, None]) -> None:
    shown = [env.observation_spec, env.full_done_spec]
    root = env.reset()
    _compare("reset", root, [*shown, env.state_spec], faults)
    for _ in range(num_steps):
        acted = env.rand_action(root)
        before = acted.clone()
        step = env.step(acted)
        _compare("step", step.get(keys.NEXT), [*shown, env.full_reward_spec], faults)
        if not _same(before, acted):
            faults["step: the root that it was given was changed; change a copy instead"] = None
        root = env.maybe_reset(env.next_root(step))


def _compare(
    what: str, found: TensorDictBase, specs: list[Composite], faults: dict[str, None]
) -> None:
    promised: dict[tuple[str, ...], Any] = {
        keys.as_tuple(key): leaf for spec in specs for key, leaf in spec.items(True, True)
    }
    there = dict(keys.leaves(found))
    stacks = {k: one for k, one in leaves_of(*specs) if isinstance(one, StackedComposite)}
    for key, stack in stacks.items():  # parts that may differ in shape, taken together
        group = found.get(key, None)
        if group is not None and not stack.is_in(group):
            faults[f"{what}: {keys.as_key(key)!r}: {stack.describe_mismatch(group)}"] = None
    for key, leaf in promised.items():
        if key not in there:
            faults[f"{what}: {keys.as_key(key)!r} is missing, expected {leaf}"] = None
        elif any(key[: len(stack)] == stack for stack in stacks):
            continue
        elif leaf is not None and not leaf.is_in(there[key]):
            faults[f"{what}: {keys.as_key(key)!r}: {leaf.describe_mismatch(there[key])}"] = None
        elif _has_nan(there[key]):
            faults[f"{what}: {keys.as_key(key)!r}: expected numbers, got NaN"] = None
        elif _is_elsewhere(there[key], leaf):
            where = f"expected device {leaf.device}, got {there[key].device}"
            faults[f"{what}: {keys.as_key(key)!r}: {where}"] = None
    for key in there.keys() - promised.keys():
        faults[f"{what}: {keys.as_key(key)!r} has no spec; set one, or leave it out"] = None


def _is_elsewhere(value: Any, leaf: Any) -> bool:
    """Whether a tensor is on another device than its spec says; objects are on none."""
    placed = leaf is not None and leaf.device is not None and isinstance(value, torch.Tensor)
    return placed and bool(value.device != leaf.device)


def _has_nan(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.isnan().any())
    )


def _same(before: TensorDictBase, after: TensorDictBase) -> bool:
    old, new = dict(keys.leaves(before)), dict(keys.leaves(after))
    return old.keys() == new.keys() and all(
        not isinstance(leaf, torch.Tensor)
        # NaN is another fault than a change
        or bool(((leaf == new[key]) | ((leaf != leaf) & (new[key] != new[key]))).all())
        for key, leaf in old.items()
    )
