"""Argument checks of environments, and their error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tensordict import TensorDictBase

from rl_envs.env.interface import Environment
from rl_layout import keys
from rl_tensordict import UnfitValue, find
from rl_tensordict.arguments import check_state, check_type
from rl_tensordict.types import Array
from rl_transforms import StepCounter, Transform


def check_open(env: Environment) -> None:
    """Raise for a closed environment."""
    if env.is_closed:
        msg = f"this {type(env).__name__} is closed: make a new one."
        raise RuntimeError(msg)


def check_request(masks: Any, kwargs: Any) -> None:
    """Raise unless these are masks by group and keyword arguments of a reset."""
    check_type("masks", masks, Mapping, "the masks of a reset by group")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        msg = f"expected a dictionary of keyword arguments of reset by name: got {kwargs!r}."
        raise TypeError(msg)


def check_root(env: Environment, root: Any) -> None:
    """Raise unless `root` is a tensordict of the environment's batch size."""
    if root is None:
        msg = "expected a tensordict, as reset returns it: got None."
        raise TypeError(msg)
    check_batch(env, root)


def check_started(env: Environment) -> None:
    """Raise for an environment that was never reset."""
    # one that is not batch-locked keeps its state in the root, and can step from any
    if env.batch_locked and not env.is_started:
        msg = f"this {type(env).__name__} was not reset yet: call reset() first."
        raise RuntimeError(msg)


def check_step(env: Environment, root: TensorDictBase) -> None:
    """Raise for a closed environment, one that was never reset, or a root of another batch size."""
    check_open(env)
    check_started(env)
    if root is None:
        msg = "expected a tensordict with the action: got None."
        raise TypeError(msg)
    check_batch(env, root)


def check_held(env: Environment, state: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """Raise for what is no saved state of an environment like this one, which holds `held`."""
    names = list(state["state"])
    if not held.keys() <= set(names):
        msg = (
            f"the state is of another environment: it holds {names}, and {env!r} has "
            f"{list(held)}. Make the same environment, with the same transforms."
        )
        raise ValueError(msg)


def check_saved(state: Mapping[str, Any]) -> None:
    """Raise for what no `state_dict()` has returned."""
    check_state("an environment", state, ("is_started", "state"))


def check_start(env: Environment, root: TensorDictBase | None) -> None:
    """Check where a rollout without a reset starts: at a root, or at surplus steps."""
    # an environment that resets rows while others step keeps its own root, and takes no other
    if not env.resets_by_stepping:
        if root is None:
            msg = "auto_reset=False needs a root to start from: pass tensordict=env.reset()."
            raise RuntimeError(msg)
        check_started(env)
        check_batch(env, root)
        return
    if root is not None:
        msg = (
            f"this {type(env).__name__} continues where its last rollout has ended: leave "
            f"tensordict out."
        )
        raise RuntimeError(msg)
    if env.leftover is None:
        msg = (
            f"this {type(env).__name__} has nothing to continue: it continues after a rollout "
            f"only, not after a reset or a step. Start with auto_reset=True."
        )
        raise RuntimeError(msg)


def check_masks(env: Environment) -> None:
    """Raise for an environment that cannot reset single rows on request."""
    if env.resets_by_stepping:
        msg = (
            f"this {type(env).__name__} resets rows only while others step, so it cannot be "
            f"batched: raise its num_envs, or use vectorization_mode='sync' or 'async'."
        )
        raise ValueError(msg)


def check_limits(transforms: Iterable[Transform]) -> None:
    """Raise for a step limit in a transform, whose rows only the environment itself can reset."""
    for one in transforms:
        if isinstance(one, StepCounter) and one.max_steps is not None and one.update_done:
            msg = (
                f"StepCounter(max_steps={one.max_steps}) ends rows that a vector environment of "
                f"its own cannot reset: pass max_episode_steps={one.max_steps} to GymVectorEnv."
            )
            raise ValueError(msg)


def check_ends(over: Array, truly: Array) -> None:
    """Raise for rows that only a transform has ended; both flags are bool `[B]`."""
    if (over & ~truly).any():
        rows = (over & ~truly).nonzero()[0].tolist()
        msg = (
            f"a transform ended rows {rows}, which continue: a vector of its own cannot "
            f"reset them. Use a limit of the environment, or vectorization_mode='sync'."
        )
        raise RuntimeError(msg)


def check_batch(env: Environment, tensordict: TensorDictBase | None) -> None:
    """Raise for a tensordict of another batch size."""
    if tensordict is None:
        return
    if not isinstance(tensordict, TensorDictBase):
        msg = f"expected a tensordict: got {type(tensordict).__name__}."
        raise TypeError(msg)
    sizes, expected = tensordict.batch_size, env.batch_size
    if not env.batch_locked and len(expected):
        sizes = sizes[-len(expected) :]
    if sizes != expected and (env.batch_locked or len(expected)):
        msg = (
            f"expected batch size {tuple(expected)}, or more dimensions before it where an "
            f"environment is not batch-locked: got {tuple(tensordict.batch_size)}."
        )
        raise UnfitValue(msg)


def check_returned(env: Environment, returned: Any, what: str) -> TensorDictBase:
    """Raise unless `_reset` or `_step` returned a tensordict of the environment's batch size."""
    name = f"{type(env).__name__}._{what}"
    if not isinstance(returned, TensorDictBase):
        entries = "observations" if what == "reset" else "observations, rewards and done flags"
        msg = (
            f"{name} must return a tensordict of batch size {tuple(env.batch_size)} with "
            f"{entries}: got {'None' if returned is None else type(returned).__name__}."
        )
        raise TypeError(msg)
    sizes, expected = returned.batch_size, env.batch_size
    if sizes != expected and (env.batch_locked or sizes[len(sizes) - len(expected) :] != expected):
        msg = f"{name} must return batch size {tuple(expected)}: got {tuple(sizes)}."
        raise ValueError(msg)
    if what == "step" and find(returned, (keys.NEXT,)) is not None:
        msg = (
            f"{name} must return observations, rewards and done flags at the root: got an entry "
            f"'next'. Return what you put there."
        )
        raise ValueError(msg)
    return returned
