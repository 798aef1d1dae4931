"""The five specs of an environment: observation, action, reward, done, state."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from rl_envs.env.done import RESET, complete_done_spec
from rl_envs.env.layout import EnvLayout
from rl_envs.env.spec_leaves import leaves_of, sizes_of_groups
from rl_layout import keys
from rl_specs import Binary, Composite, TensorSpec, Unbounded
from rl_tensordict.types import KeyPath

DERIVED = ("layout", "_one_column")
SPECS = ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec", "state_spec")


class EnvSpecs:
    """The specs of an environment, locked."""

    # Each setter takes one spec, which gets the usual key, or a `Composite` of several. Reward and
    # done specs without a last dimension of size 1 are given one, and the done specs are completed.

    batch_size: torch.Size
    device: torch.device

    _observation: Composite | None = None
    _action: Composite | None = None
    _reward: Composite | None = None
    _done: Composite | None = None
    _state: Composite | None = None

    @property
    def observation_spec(self) -> Composite:
        """Specs of all observations, `[*B, ...]` each."""
        if self._observation is None:
            msg = f"{type(self).__name__} has no observation_spec: set it in __init__."
            raise AttributeError(msg)
        return self._observation

    @observation_spec.setter
    def observation_spec(self, spec: TensorSpec) -> None:
        self._observation = self._whole(spec, "observation")
        self._specs_changed()

    full_observation_spec = observation_spec

    @property
    def action_spec(self) -> Any:
        """Spec of the action, or of all actions if there are several."""
        return _only(self.full_action_spec)

    @action_spec.setter
    def action_spec(self, spec: TensorSpec) -> None:
        self._action = self._whole(spec, "action")
        self._specs_changed()

    @property
    def full_action_spec(self) -> Composite:
        """Specs of all actions, by key."""
        if self._action is None:
            msg = f"{type(self).__name__} has no action_spec: set it in __init__."
            raise AttributeError(msg)
        return self._action

    @full_action_spec.setter
    def full_action_spec(self, spec: TensorSpec) -> None:
        self.action_spec = spec

    @property
    def reward_spec(self) -> Any:
        """Spec of the reward `[*B, ..., 1]`, or of all rewards if there are several."""
        return _only(self.full_reward_spec)

    @reward_spec.setter
    def reward_spec(self, spec: TensorSpec) -> None:
        self._reward = self._whole(spec, keys.REWARD, column=True)
        self._specs_changed()

    @property
    def full_reward_spec(self) -> Composite:
        """Specs of all rewards, by key."""
        if self._reward is None:
            self.reward_spec = Unbounded((*self.batch_size, 1), device=self.device)
        assert self._reward is not None
        return self._reward

    @full_reward_spec.setter
    def full_reward_spec(self, spec: TensorSpec) -> None:
        self.reward_spec = spec

    @property
    def done_spec(self) -> Composite:
        """Specs of all done flags: `done`, `terminated` and `truncated` in each group."""
        if self._done is None:
            self.done_spec = Binary(
                shape=(*self.batch_size, 1), device=self.device, dtype=torch.bool
            )
        assert self._done is not None
        return self._done

    @done_spec.setter
    def done_spec(self, spec: TensorSpec) -> None:
        self._done = complete_done_spec(self._whole(spec, keys.DONE, column=True)).lock_()
        self._specs_changed()

    full_done_spec = done_spec

    @property
    def state_spec(self) -> Composite:
        """Specs of what a step reads alongside observations and actions."""
        if self._state is None:
            self.state_spec = Composite(shape=self.batch_size)
        assert self._state is not None
        return self._state

    @state_spec.setter
    def state_spec(self, spec: TensorSpec) -> None:
        self._state = self._whole(spec, "state")
        self._specs_changed()

    full_state_spec = state_spec

    @property
    def input_spec(self) -> Composite:
        """Specs of what a step takes: `full_action_spec` and `full_state_spec`."""
        return self._joined("full_action_spec", "full_state_spec")

    @property
    def output_spec(self) -> Composite:
        """Specs of what a step returns: those of observations, rewards and done flags."""
        return self._joined("full_observation_spec", "full_reward_spec", "full_done_spec")

    @property
    def action_keys(self) -> list[keys.NestedKey]:
        """Keys of all actions."""
        return list(self.full_action_spec.keys(True, True))

    @property
    def reward_keys(self) -> list[keys.NestedKey]:
        """Keys of all rewards, without `"next"`."""
        return list(self.full_reward_spec.keys(True, True))

    @property
    def done_keys(self) -> list[keys.NestedKey]:
        """Keys of all done flags, without `"next"`."""
        return list(self.full_done_spec.keys(True, True))

    @property
    def action_key(self) -> keys.NestedKey:
        """Key of the action; a KeyError if there are several."""
        return _only_key("action", self.action_keys)

    @property
    def reward_key(self) -> keys.NestedKey:
        """Key of the reward, without `"next"`; a KeyError if there are several."""
        return _only_key("reward", self.reward_keys)

    @property
    def done_key(self) -> keys.NestedKey:
        """Key of the flag `done`; a KeyError where several groups have one."""
        return _only_key(
            keys.DONE, [keys.as_key((*group, keys.DONE)) for group in self.done_groups]
        )

    @property
    def reset_keys(self) -> list[keys.NestedKey]:
        """Key of the mask `_reset` of each group with done flags, the root's first."""
        return [keys.as_key((*group, RESET)) for group in self.done_groups]

    @property
    def done_groups(self) -> list[KeyPath]:
        """Prefix of each group with done flags of its own; `()` is the root."""
        return self.layout.groups

    @cached_property
    def layout(self) -> EnvLayout:
        """The leaves of its data and its done groups, derived once from the specs."""
        return EnvLayout(
            self.batch_size,
            observation=leaves_of(self.observation_spec),
            action=leaves_of(self.full_action_spec),
            reward=leaves_of(self.full_reward_spec),
            done=leaves_of(self.full_done_spec),
            state=leaves_of(self.state_spec),
            group_sizes=sizes_of_groups(
                self.observation_spec, self.full_reward_spec, self.full_done_spec
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        # what is derived holds functions, which a copy would share with this environment
        return {name: held for name, held in self.__dict__.items() if name not in DERIVED}

    def _joined(self, *names: str) -> Composite:
        joined = Composite(
            {name: getattr(self, name).clone() for name in names}, shape=self.batch_size
        )
        return joined.lock_()

    def _move_specs(self) -> None:
        """Follow the environment to its device."""
        for name in ("_observation", "_action", "_reward", "_done", "_state"):
            spec = getattr(self, name)
            if spec is not None:
                setattr(self, name, spec.to(self.device).lock_())
        self._specs_changed()

    def _specs_changed(self) -> None:
        """Forget what was derived from the specs."""
        for name in DERIVED:
            self.__dict__.pop(name, None)

    def _whole(self, spec: TensorSpec, key: str, *, column: bool = False) -> Composite:
        """Write a spec as a locked tree `[*B]`, its leaves ending in size 1 on request."""
        if not hasattr(self, "batch_size"):
            msg = (
                f"{type(self).__name__}.__init__ sets the {key} spec before the environment has a "
                f"batch size: call super().__init__(batch_size=...) first."
            )
            raise RuntimeError(msg)
        if isinstance(spec, Composite):
            whole = spec.clone()
            if whole.shape[: len(self.batch_size)] != self.batch_size:
                whole.shape = self.batch_size
        elif spec.shape[: len(self.batch_size)] == self.batch_size:
            whole = Composite({key: spec}, shape=self.batch_size)
        else:
            msg = (
                f"the {key} spec must begin with the batch size {tuple(self.batch_size)}: "
                f"got {tuple(spec.shape)}. Expand it first."
            )
            raise ValueError(msg)
        if column:
            for name in list(whole.keys(True, True)):
                leaf = whole[name]
                if leaf.shape == self.batch_size:
                    whole.set(name, leaf.unsqueeze(-1))
        placed: Composite = whole.to(self.device)
        return placed.lock_()


def _only_key(role: str, found: list[keys.NestedKey]) -> keys.NestedKey:
    """The one key of a role."""
    if len(found) != 1:
        msg = f"expected one {role}, as {role}_key names it: there are {found}. Use {role}_keys."
        raise KeyError(msg)
    return found[0]


def _only(spec: Composite) -> Any:
    """The one leaf of a tree, or the tree if there are several."""
    names = list(spec.keys(True, True))
    return spec[names[0]] if len(names) == 1 else spec
