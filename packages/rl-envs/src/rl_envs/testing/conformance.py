"""The guarantees of every environment, as one function to call from a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_envs.env.env import EnvBase
from rl_envs.testing.check_env_specs import check_env_specs
from rl_layout import keys


def check_conformance(make: Callable[[], EnvBase], seed: int = 0, num_steps: int = 20) -> None:
    """Check that an environment keeps every promise that environments make.

    Specs are obeyed; the same seed gives the same rollout; a batch has the named time dimension; a
    partial reset leaves the other rows alone; a saved state continues as the original (where the
    environment can save one); a closed environment refuses to continue.

    Args:
        make: makes the environment, as often as it is called.
        seed: a seed for it.
        num_steps: how many steps to play.

    Raises:
        AssertionError: a promise is broken; the message says which.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> check_conformance(lambda: CountingEnv(3, batch_size=(2,)))
    """
    with make() as env:
        check_env_specs(env, seed=seed)
    _check_seed(make, seed, num_steps)
    _check_partial_reset(make)
    _check_rows_that_go_on(make, seed)
    _check_state(make, seed, num_steps)
    _check_life(make)


def _demand(true: bool, promise: str, env: Any) -> None:
    if not true:
        msg = f"{type(env).__name__} breaks a promise: {promise}"
        raise AssertionError(msg)


def _check_seed(make: Callable[[], EnvBase], seed: int, num_steps: int) -> None:
    first, second = (_seeded_rollout(make, seed, num_steps) for _ in range(2))
    with make() as env:
        _demand(first.names[-1] == keys.TIME, "the last dimension is named 'time'", env)
        _demand(first.batch_size[:-1] == env.batch_size, "a rollout is [*B, T]", env)
        where = _difference(first, second)
        _demand(not where, f"the same seed gives the same rollout, {where} differs", env)


def _seeded_rollout(make: Callable[[], EnvBase], seed: int, num_steps: int) -> TensorDictBase:
    with make() as env, torch.random.fork_rng([]):
        torch.manual_seed(seed)
        env.set_seed(seed)
        return env.rollout(num_steps, break_when_any_done=False)


def _check_partial_reset(make: Callable[[], EnvBase]) -> None:
    with make() as env:
        root = env.next_root(env.rand_step(env.reset()))
        for prefix in [()] if () in env.done_groups else env.done_groups:
            flag = env.full_done_spec[(*prefix, keys.DONE)]
            none = torch.zeros(flag.shape, dtype=torch.bool, device=flag.device)
            root.set((*prefix, "_reset"), none)
        kept = env.reset(root)
        for key, _ in keys.leaves(env.observation_spec.zero()):
            same = torch.equal(kept.get(key), root.get(key))
            _demand(same, f"a mask without True resets nothing, {key} changed", env)
        if () in env.done_groups and env.batch_size.numel() > 1:
            _check_other_rows(env, root)


def _check_other_rows(env: EnvBase, root: TensorDictBase) -> None:
    fresh = env.reset(root.copy().set("_reset", _first_row(env)))
    for key, _ in keys.leaves(env.observation_spec.zero()):
        old, new = (td.get(key).flatten(0, len(env.batch_size) - 1)[1:] for td in (root, fresh))
        _demand(torch.equal(old, new), f"a partial reset keeps the other rows, {key} changed", env)


def _check_rows_that_go_on(make: Callable[[], EnvBase], seed: int) -> None:
    """A partial reset changes nothing that the next step of another row shows."""
    with make() as env:
        if () not in env.done_groups or env.batch_size.numel() < 2 or env.resets_by_stepping:
            return
    plain, noisy, reset = (
        _other_rows_after(make, seed, **options)
        for options in ({}, {"noise": 1}, {"resets_first": True})
    )
    for key, leaf in plain.items():
        # what is random in spite of the seed says nothing
        same = not torch.equal(leaf, noisy[key]) or torch.equal(leaf, reset[key])
        promise = f"a partial reset leaves the state of the other rows alone, {key} changed"
        _demand(same, f"{promise}: reset the rows of '_reset' only", env)


def _other_rows_after(
    make: Callable[[], EnvBase], seed: int, noise: int = 0, *, resets_first: bool = False
) -> dict[Any, torch.Tensor]:
    """What the second step shows of all rows but the first, by key."""
    with make() as env, torch.random.fork_rng([]):
        torch.manual_seed(seed)
        env.set_seed(seed)
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        if resets_first:
            root = env.reset(root.copy().set("_reset", _first_row(env)))
        torch.manual_seed(seed)
        acted = env.rand_action(root)
        torch.manual_seed(seed + noise)
        env.set_seed(seed + noise)
        after = env.step(acted)[keys.NEXT].flatten(0, len(env.batch_size) - 1)[1:]
        return {keys.as_key(key): leaf for key, leaf in keys.leaves(after)}


def _first_row(env: EnvBase) -> torch.Tensor:
    """The mask of the first row, bool `[*B, 1]`."""
    mask = torch.zeros(env.batch_size.numel(), dtype=torch.bool, device=env.device)
    mask[0] = True
    return mask.reshape(*env.batch_size, 1)


def _check_state(make: Callable[[], EnvBase], seed: int, num_steps: int) -> None:
    with make() as env, make() as other, torch.random.fork_rng([]):
        env.set_seed(seed)
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        with suppress(NotImplementedError):
            other.load_state_dict(env.state_dict())
            batches = []
            for one in (env, other):
                torch.manual_seed(seed)
                batches.append(_go_on(one, root, num_steps))
            where = _difference(*batches)
            _demand(not where, f"a loaded state continues as the saved one, {where} differs", env)


def _go_on(env: EnvBase, root: TensorDictBase, num_steps: int) -> TensorDictBase:
    return env.rollout(num_steps, break_when_any_done=False, auto_reset=False, tensordict=root)


def _check_life(make: Callable[[], EnvBase]) -> None:
    env = make()
    for method, promise in (
        (lambda: env.rand_step(env.fake_tensordict()), "a step before a reset is refused"),
        (env.reset, "a closed environment is refused"),
    ):
        if promise.startswith("a closed"):
            env.close()
            env.close()
        elif not env.batch_locked:
            continue
        _demand(_raises(method), promise, env)


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def _difference(first: TensorDictBase, second: TensorDictBase) -> str:
    """Name the first leaf in which two batches differ, or nothing."""
    others = dict(keys.leaves(second))
    for key, leaf in keys.leaves(first):
        other = others.pop(key, None)
        if other is None or not torch.equal(leaf, other):
            return str(keys.as_key(key))
    return str(next(iter(others), ""))
