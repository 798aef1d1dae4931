"""What a worker of a parallel environment does: it runs a serial one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.batched.serial import SerialEnv
from rl_envs.batched.shared_step_buffers import Exchange
from rl_envs.env.env import EnvBase
from rl_layout import keys
from rl_slabs import Slab


@dataclass(frozen=True)
class EnvTraits:
    """What the caller must know of one environment in a worker."""

    specs: Mapping[str, Any]  # By the name of the attribute
    batch_size: torch.Size  # Its sizes [*B]
    device: torch.device  # Where its data lies
    reads_actions_only: bool  # Whether it steps through numpy rows by itself, from its action alone
    check_values: bool  # Whether its values are compared with their specs
    flags_agree: bool  # Whether done is always terminated or truncated

    @classmethod
    def of(cls, env: EnvBase) -> EnvTraits:
        """Read them off an environment."""
        specs = {
            "observation_spec": env.observation_spec,
            "action_spec": env.full_action_spec,
            "reward_spec": env.full_reward_spec,
            "done_spec": env.full_done_spec,
            "state_spec": env.state_spec,
        }
        return cls(
            specs,
            env.batch_size,
            env.device,
            env.reads_actions_only,
            env.check_values,
            env.flags_agree,
        )


class EnvServant:
    """A serial environment whose steps come and go through shared rows, or as messages."""

    signals = ("step", "restart", "reset")

    def __init__(
        self, makers: Sequence[Callable[..., EnvBase]], kwargs: Sequence[Mapping[str, Any]]
    ) -> None:
        self.env = SerialEnv(len(makers), makers, kwargs)
        self._rows: Exchange | None = None

    def traits(self) -> list[EnvTraits]:
        """What each environment is like."""
        return [EnvTraits.of(env) for env in self.env.envs]

    def attach(self, slab: Slab, first: int) -> None:
        """Take the rows from `first` on as those of the environments here."""
        self._rows = Exchange(slab, slice(first, first + len(self.env.envs)))
        shown = (*self.env._observation_leaves, *self.env._done_leaves)
        inputs = (*self.env._action_leaves, *self.env._observation_leaves, *self.env._state_leaves)
        self._shown = {key: self._rows.root[key] for key, _ in shown}
        self._inputs = {key: self._rows.root[key] for key, _ in inputs}

    # signals

    def step(self) -> None:
        """Step from the rows into the rows."""
        assert self._rows is not None
        self.env.step_into(self._inputs, self._rows.after)

    def restart(self) -> None:
        """Reset every environment into the rows."""
        self.env.reset_into(self._shown)

    def reset(self) -> None:
        """Reset what the mask names, over the roots in the rows."""
        assert self._rows is not None
        self.env.reset_into(self._shown, self._rows.mask)

    # messages

    def reset_each(
        self, roots: Sequence[TensorDictBase | None], kwargs: dict[str, Any]
    ) -> list[TensorDictBase]:
        """Reset each environment by a root of its own."""
        return [env.reset(root, **kwargs) for env, root in zip(self.env.envs, roots, strict=True)]

    def step_each(self, roots: Sequence[TensorDictBase]) -> list[TensorDictBase]:
        """Step each environment from a root of its own; returns what is under `"next"`."""
        pairs = zip(self.env.envs, roots, strict=True)
        return [env.step(root).get(keys.NEXT) for env, root in pairs]

    def set_seed(self, seed: int, static_seed: bool) -> int:
        """Seed the environments in turn; returns the seed of the next one."""
        return self.env.set_seed(seed, static_seed)

    def render(self) -> Tensor:
        """A frame of each environment."""
        return self.env.render()

    def get_states(self) -> list[Any]:
        """The state of each environment."""
        states: list[Any] = self.env._get_state()["envs"]
        return states

    def set_states(self, states: list[Any]) -> None:
        """Go back to a state of each environment."""
        self.env._set_state({"envs": states})

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
