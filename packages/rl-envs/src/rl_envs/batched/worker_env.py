"""The worker of a parallel environment: it runs a serial one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.batched.remote_env import CALLS, call_each, is_method
from rl_envs.batched.serial import SerialEnv
from rl_envs.batched.shared_step_buffers import SharedStepBuffers
from rl_envs.env.binding import bind_rows
from rl_envs.env.env import EnvBase
from rl_envs.env.forwarding import attributes_of
from rl_envs.env.seeds import generator_seed
from rl_envs.env.specs import SPECS
from rl_envs.gym.final_observations import MissingObservationsWarning
from rl_layout import keys
from rl_slabs import Slab
from rl_tensordict import draw_seed
from rl_tensordict.types import KeyPath


@dataclass(frozen=True)
class EnvTraits:
    """Specs and properties of one environment, as a worker reports them to the caller."""

    specs: Mapping[str, Any]  # by the name of the attribute
    batch_size: torch.Size  # [*B]
    device: torch.device
    reads_actions_only: bool  # steps through numpy rows itself, and reads nothing but its action
    check_values: bool
    flags_agree: bool  # done is always terminated | truncated
    marks_missing: bool  # may lack last observations, and marks such rows
    observed: Sequence[KeyPath]  # observations of its innermost environment

    @classmethod
    def of(cls, env: EnvBase) -> EnvTraits:
        """Collect the traits of an environment."""
        return cls(
            {name.removeprefix("full_"): getattr(env, name) for name in SPECS},
            env.batch_size,
            env.device,
            env.reads_actions_only,
            env.check_values,
            env.flags_agree,
            env.marks_missing,
            _observed(env),
        )

    def check_alike(self, others: Sequence[EnvTraits], first: int = 0) -> None:
        """Raise for specs that are not these; the workers have numbers from `first` on."""
        for number, other in enumerate(others, first):
            for name, spec in self.specs.items():
                if other.specs[name] != spec:
                    msg = (
                        f"worker {number} differs from worker 0 in {name}: {other.specs[name]} "
                        f"against {spec}."
                    )
                    raise ValueError(msg)


def _observed(env: EnvBase) -> list[KeyPath]:
    while (inner := vars(env).get("base_env")) is not None:  # a transformed one
        env = inner
    return [key for key, _ in env.layout.observation]


class EnvWorker:
    """A serial environment in a worker, stepped through shared rows or by messages."""

    signals = ("step", "restart", "reset")

    def __init__(
        self,
        makers: Sequence[Callable[..., EnvBase]],
        kwargs: Sequence[Mapping[str, Any]],
        drawn: Sequence[int] = (0,),
        first: int = 0,
    ) -> None:
        # a fork has the caller's generator: processes would all draw the same
        torch.manual_seed(drawn[0] + first)
        self._first = first
        self.env = SerialEnv(len(makers), makers, kwargs)
        warnings.simplefilter("ignore", MissingObservationsWarning)  # the caller warns, once
        self._rows: SharedStepBuffers | None = None

    def traits(self) -> list[EnvTraits]:
        """The traits of each environment."""
        return [EnvTraits.of(env) for env in self.env.envs]

    def attach(self, slab: Slab, first: int) -> None:
        """Attach the shared rows of the environments here, the first of which is row `first`."""
        self._rows = SharedStepBuffers(slab, slice(first, first + len(self.env.envs)))
        self._binding = bind_rows(self.env, self._rows.root, self._rows.after)

    # signals

    def step(self) -> None:
        """Step every environment: inputs and results are in the shared rows."""
        self._binding.step(0)

    def restart(self) -> None:
        """Reset every environment into the rows."""
        self._binding.start()

    def reset(self) -> None:
        """Reset the rows that the mask selects; the others keep their root."""
        assert self._rows is not None
        self._binding.start(self._rows.mask)

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

    def attributes(self, outer: str, name: str, place: int | None = None) -> list[tuple[Any, ...]]:
        """An attribute of each environment, or of one, in a tuple; `CALLS` for methods."""
        found = attributes_of(outer, self._some(place), name)
        return [(CALLS,) if is_method(one) else (one,) for one in found]

    def call_methods(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], place: int | None = None
    ) -> list[Any]:
        """Call a method of each environment, or of one."""
        return call_each([getattr(env, name) for env in self._some(place)], *args, **kwargs)

    def _some(self, place: int | None) -> Sequence[EnvBase]:
        return self.env.envs if place is None else [self.env.envs[place]]

    def set_seed(self, seed: int, static_seed: bool) -> int:
        """Seed the environments in turn, and what they draw from torch; returns the next seed."""
        torch.manual_seed(generator_seed(seed))
        return self.env.set_seed(seed, static_seed)

    def render(self) -> Tensor:
        """A frame of each environment."""
        return self.env.render()

    def get_states(self) -> list[Any]:
        """The state of each environment, and the generator and the number of the process."""
        own = {"random": torch.get_rng_state(), "process": self._first}
        return [{**env.state_dict(), **own} for env in self.env.envs]

    def set_states(self, states: list[Any], number: int = 0) -> None:
        """Restore the state of each environment; `number` other processes got its generator."""
        for env, state in zip(self.env.envs, states, strict=True):
            env.load_state_dict(state)
        if "random" in states[0]:  # a serial one has that of its process
            torch.set_rng_state(states[0]["random"])
            if number:  # a continuation for each, that the others do not have
                torch.manual_seed(draw_seed() + number)
        if self._rows is not None:  # transforms are bound to what they held
            self._binding = bind_rows(self.env, self._rows.root, self._rows.after)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def numbered(parts: Sequence[list[Any]]) -> list[tuple[list[Any], int]]:
    """Count for each process how many before it are given the generator of the same one."""
    # as where one process had the environments of several when their state was saved
    saved = [part[0].get("process") for part in parts]
    numbers = [0 if one is None else saved[:place].count(one) for place, one in enumerate(saved)]
    return list(zip(parts, numbers, strict=True))
