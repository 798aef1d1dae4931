"""Agents that have the same spaces, as rows of one group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_envs.gym.missions import with_texts
from rl_envs.gym.spaces.specs import spec_under
from rl_envs.gym.spaces.tree import Space, assemble, leaves_of_space, value_at
from rl_envs.gym.spaces.values import batch_reader_of_space, writer_of_space
from rl_layout import keys
from rl_specs import Binary, Composite, Unbounded
from rl_tensordict import build, nest
from rl_tensordict.types import Array, KeyPath

MASK = "mask"
ACTION_MASK = "action_mask"


@dataclass(frozen=True)
class AgentGroup:
    """Specs of some agents `[A]`, and what converts their values."""

    agents: Sequence[str]
    observation: Composite
    action: Composite
    writers: Sequence[tuple[KeyPath, tuple[Any, ...], Callable[[Array, Any], None]]]
    readers: Sequence[tuple[KeyPath, Callable[[Array], Any]]]
    action_space: Space

    @classmethod
    def of(
        cls, env: Any, name: str, agents: Sequence[str], *, one_hot: bool, takes_turns: bool
    ) -> AgentGroup:
        """The group of agents of a PettingZoo environment; raise where their spaces differ."""
        kinds = [spaces_of(env, agent) for agent in agents]
        if any(kind != kinds[0] for kind in kinds):
            msg = f"groups: the agents of {name!r} have different spaces: make groups of {kinds}."
            raise ValueError(msg)
        seen, acted = with_texts(kinds[0][0]), kinds[0][1]
        shown, taken = leaves_of_space(seen, "observation"), leaves_of_space(acted, "action")
        observation = spec_under("observation", seen).expand(len(agents))
        for mark in (MASK, keys.WAITING) if takes_turns else (MASK,):
            observation.set(mark, Binary(shape=(len(agents), 1), dtype=torch.bool, device="cpu"))
        allowed = observation.get(ACTION_MASK, None)
        if allowed is not None:  # PettingZoo's are integers, all 0 unless it is the agent's turn
            observation.set(
                ACTION_MASK, Binary(shape=allowed.shape, dtype=torch.bool, device="cpu")
            )
        return cls(
            list(agents),
            observation,
            spec_under("action", acted, one_hot=one_hot).expand(len(agents)),
            [(one.key, one.path, writer_of_space(one.space, one.key)) for one in shown],
            [(one.key, batch_reader_of_space(one.space, one_hot=one_hot)) for one in taken],
            acted,
        )

    @property
    def reward(self) -> Composite:
        """The spec of rewards `[A, 1]`."""
        count = len(self.agents)
        return Composite({keys.REWARD: Unbounded((count, 1), device="cpu")}, shape=(count,))

    @property
    def done(self) -> Composite:
        """The specs of flags `[A, 1]`."""
        count = len(self.agents)
        flags = {
            name: Binary(shape=(count, 1), dtype=torch.bool, device="cpu")
            for name in keys.DONE_KEYS
        }
        return Composite(flags, shape=(count,))

    def unseen(self) -> dict[KeyPath, Array]:
        """Observations `[A, ...]` of agents that saw nothing yet: zeros."""
        return {
            key: np.array(self.observation.get(keys.as_key(key)).zero().numpy())
            for key, _, _ in self.writers
        }

    def see(self, last: Mapping[KeyPath, Array], seen: Mapping[str, Any]) -> None:
        """Write what agents see to the rows of the last observations, in place."""
        for row, agent in enumerate(self.agents):
            for key, path, write in self.writers if agent in seen else ():
                write(last[key][row, ...], value_at(seen[agent], path))

    def shown(
        self, last: Mapping[KeyPath, Array], acting: Sequence[str], going: Sequence[str]
    ) -> TensorDictBase:
        """The last observations of the agents, which of them act, and which others wait."""
        # An action mask allows everything to agents that do not act, whose actions are ignored.
        found = {key: torch.from_numpy(leaf.copy()) for key, leaf in last.items()}
        acts = torch.tensor([[agent in acting] for agent in self.agents], device="cpu")
        found[MASK,] = acts
        if keys.WAITING in self.observation.keys():  # noqa: SIM118 - a Composite has no `in`
            in_play = torch.tensor([[one in going] for one in self.agents], device="cpu")
            found[keys.WAITING,] = in_play & ~acts
        if (ACTION_MASK,) in found:
            found[ACTION_MASK,] |= ~acts  # [A, n] | [A, 1]
        return build(nest(found), torch.Size([len(self.agents)]))

    def actions(self, group: TensorDictBase, acting: Sequence[str]) -> dict[str, Any]:
        """The actions of those agents that act, as their space has them."""
        batches = [read(group.get(keys.as_key(key)).numpy()) for key, read in self.readers]
        rows = [(row, agent) for row, agent in enumerate(self.agents) if agent in acting]
        return {
            agent: assemble(self.action_space, (batch[row] for batch in batches))
            for row, agent in rows
        }

    def results(
        self, rewards: Mapping[str, Any], flags: Mapping[str, tuple[bool, bool]]
    ) -> TensorDictBase:
        """Rewards and flags of the agents; agents that were not in yet have neither."""
        names = {keys.TERMINATED: 0, keys.TRUNCATED: 1}
        found = {
            name: torch.tensor(
                [[agent in flags and flags[agent][place]] for agent in self.agents], device="cpu"
            )
            for name, place in names.items()
        }
        gained = [[float(rewards.get(agent, 0.0))] for agent in self.agents]
        found[keys.REWARD] = torch.tensor(gained, device="cpu")
        return build(found, torch.Size([len(self.agents)]))


def spaces_of(env: Any, agent: str) -> tuple[Space, Space]:
    """The spaces of an agent: what it sees, and what it does."""
    return env.observation_space(agent), env.action_space(agent)


def groups_by_space(env: Any) -> dict[str, list[str]]:
    """One group of all agents if they have the same spaces, else one for each kind."""
    kinds: list[tuple[tuple[Space, Space], list[str]]] = []
    for agent in env.possible_agents:
        own = spaces_of(env, agent)
        found = next((agents for kind, agents in kinds if kind == own), None)
        if found is None:
            kinds.append((own, [agent]))
        else:
            found.append(agent)
    if len(kinds) == 1:
        return {"agents": kinds[0][1]}
    named: dict[str, list[str]] = {}
    for _, agents in kinds:
        stems = {re.sub(r"[_\d]+$", "", agent) for agent in agents}
        stem = stems.pop() if len(stems) == 1 else agents[0]
        named[stem if stem and stem not in named else agents[0]] = agents
    return named
