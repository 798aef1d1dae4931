"""Environments stepped by a transform: several frames per action, or steps after a reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.batched.parallel import ParallelEnv
from rl_envs.batched.serial import SerialEnv
from rl_envs.env.done import RESET
from rl_envs.env.env import EnvBase
from rl_envs.env.partial_reset import mask_of, merge, reset_masks
from rl_envs.gym.vector_env import GymVectorEnv
from rl_layout import keys
from rl_transforms import Driver, Place

RowEffect = Literal["stand", "pass", "neither"]


@runtime_checkable
class StepsThrough(Protocol):
    """An environment around another one, whose steps pass through it: a `TransformedEnv`."""

    @property
    def inner(self) -> EnvBase:
        """The environment inside."""

    def step_through(
        self, tensordict: TensorDictBase, step: Callable[[EnvBase, TensorDictBase], TensorDictBase]
    ) -> TensorDictBase:
        """Pass a root to a step of the environment inside, and what comes back to the outside."""


class DrivenEnv(EnvBase):
    """An environment whose step or reset a `Driver` transform builds from several steps."""

    # made by TransformedEnv where a Driver is among its transforms

    def __init__(self, env: EnvBase, driver: Driver) -> None:
        _check(env, driver)
        super().__init__(device=env.device, batch_size=env.batch_size)
        self.env, self.driver = env, driver
        self.batch_locked, self.check_values = env.batch_locked, False  # env checks its own
        self.flags_agree = env.flags_agree
        self.done_spec = driver.transform_done_spec(env.full_done_spec)
        self.reward_spec = driver.transform_reward_spec(env.full_reward_spec)
        self.observation_spec = driver.transform_observation_spec(env.observation_spec)
        self.action_spec = driver.transform_action_spec(env.full_action_spec)
        self.state_spec = driver.transform_state_spec(env.state_spec)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment inside and the transform."""
        following = self.env.set_seed(seed, static_seed)
        self.driver.seed(seed)
        return following

    def check_place(self, place: Place) -> None:
        """Raise for a place that the transform, or one further in, cannot work in."""
        self.driver.check_place(place)
        self.env.check_place(place)

    # what the transform may do

    def step_rows(self, root: TensorDictBase, rows: Tensor | None = None) -> TensorDictBase:
        """Step the rows of a mask `[*B]`, or all; what other rows hold then has no meaning."""
        if rows is None or bool(rows.all()):
            return self.env.step(root).get(keys.NEXT)
        return step_selected(self.env, root, rows)

    def reset_rows(self, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Reset the rows of a mask `[*B]`; the others keep their root."""
        return self.env.reset(root.copy().set(RESET, rows.unsqueeze(-1)))

    def following(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Return the root after a step, without rewards and actions."""
        return self.env.next_root(root.copy().set(keys.NEXT, after))

    def over(self, after: TensorDictBase) -> Tensor:
        """The rows that a step has ended, bool `[*B]`."""
        done: Tensor = after.get(keys.DONE).squeeze(-1)
        return done

    def merge(self, old: TensorDictBase, new: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Merge two tensordicts `[*B]`: rows of `new` where the mask is True, else of `old`."""
        return merge(old, new, {(): rows.unsqueeze(-1)})

    # what environments do

    @property
    def _inside(self) -> Sequence[EnvBase]:
        return (self.env,)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = None
        if tensordict is None:
            root = self.env.reset(**kwargs)
        else:
            masks = reset_masks(tensordict, self.done_groups, self.batch_size)
            mask = mask_of(masks, ()).squeeze(-1)
            root = self.env.reset(tensordict, **kwargs)
        return self.driver.drive_reset(self, root, mask) if self._moves("reset") else root

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._moves("step"):
            return self.driver.drive_step(self, tensordict)
        return self.step_rows(tensordict)

    def _moves(self, what: str) -> bool:
        return self.driver.drives == what

    def _get_state(self) -> dict[str, Any]:
        return {"env": self.env.state_dict(), "driver": dict(self.driver.state_dict())}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        self.driver.load_state_dict(state["driver"])

    def _close(self) -> None:
        self.env.close()


def step_selected(env: EnvBase, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
    """Step the rows of a mask `[*B]`; the others keep their state, or are over and ignored."""
    # rows that keep their state hold zeros in the result, and are done
    # batched environments come first: they have the attributes of those inside them too
    if isinstance(env, SerialEnv):
        parts = zip(env.envs, root.unbind(0), rows.unbind(0), strict=True)
        return TensorDict.stack([_step_one(*part) for part in parts])
    if isinstance(env, ParallelEnv):
        return _step_processes(env, root, rows)
    if isinstance(env, StepsThrough):
        return env.step_through(root, lambda inner, raw: step_selected(inner, raw, rows))
    if isinstance(env, DrivenEnv) and env.driver.drives == "reset":
        return step_selected(env.env, root, rows)
    return env.step(root).get(keys.NEXT)


def _step_one(env: EnvBase, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
    if not bool(rows.any()):
        return _resting(env)
    after = env.step(root).get(keys.NEXT) if bool(rows.all()) else step_selected(env, root, rows)
    return after.select(*[key for key, _ in env.layout.after])


def _step_processes(env: ParallelEnv, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
    """Step some of the processes, each of which runs one environment (`row_effect` checks that)."""
    names = [key for key, _ in env.layout.after]
    stepped = env.step_some(root, rows.flatten().tolist())
    return TensorDict.stack(
        [
            rest if after is None else after.select(*names)
            for rest, after in zip(_resting(env), stepped, strict=True)
        ]
    )


def _resting(env: EnvBase) -> TensorDictBase:
    """The result of rows that were not stepped: zeros, done and terminated."""
    after = env.observation_spec.zero().update(env.full_reward_spec.zero())
    done = env.full_done_spec.zero()
    for key, flag in keys.leaves(done):
        done.set(key, torch.full_like(flag, key[-1] != keys.TRUNCATED))
    return after.update(done)


def row_effect(env: EnvBase) -> RowEffect:
    """Whether rows can keep their state while others step."""
    # "stand": they can; "pass": they are stepped along, also past the end of an episode, until
    # they are reset; "neither": they can do neither
    if env.resets_by_stepping:
        return "neither"
    if isinstance(env, SerialEnv):
        found = {row_effect(inner) for inner in env.envs}
        order: tuple[RowEffect, ...] = ("neither", "pass", "stand")
        return next(kind for kind in order if kind in found)
    if isinstance(env, ParallelEnv):
        alone = len(env.pool) == env.batch_size.numel()
        return "stand" if alone else "neither"
    if env.batch_size.numel() == 1:
        return "stand"
    if isinstance(env, StepsThrough):
        return row_effect(env.inner)
    if isinstance(env, DrivenEnv):
        return "neither" if row_effect(env.env) == "neither" else "pass"
    return "neither" if isinstance(env, GymVectorEnv) else "pass"


def _check(env: EnvBase, driver: Driver) -> None:
    name, who = type(driver).__name__, type(env).__name__
    if () not in env.done_groups:
        msg = f"{name} needs a done flag at the root: {who} ends its groups one by one."
        raise ValueError(msg)
    rows = row_effect(env)
    if rows == "neither" or (driver.drives == "reset" and rows != "stand"):
        msg = (
            f"{name} needs rows that stand still while others step, which those of {who} cannot: "
            f"put it into each environment, as SerialEnv(n, lambda: TransformedEnv(make(), {name}"
            f"(...)))."
        )
        raise ValueError(msg)
