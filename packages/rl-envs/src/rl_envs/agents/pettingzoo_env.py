"""PettingZoo environments, of agents that act together or in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_envs.agents.groups import AgentGroup, groups_by_space
from rl_envs.env.env import EnvBase
from rl_layout import keys
from rl_specs import Binary, Composite
from rl_tensordict import build
from rl_tensordict.types import Array, KeyPath

_RESET = ("observations", "infos")
_IN = (False, False)  # neither terminated nor truncated
_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


class PettingZooEnv(EnvBase):
    """An environment of PettingZoo: agents with the same spaces are rows of one group.

    Observations are under `("agents", "observation")` `[A, ...]`, the parts of a `Dict` space under
    their own names, actions under `("agents", "action")`. `("agents", "mask")`, bool `[A, 1]`, says
    who acts: agents that are out repeat their last observation and flags, get reward 0, and their
    action is ignored. The root is done when every agent is out, and terminated if each agent that
    joined was terminated.

    Where agents take turns (PettingZoo's AEC), a step is the turn of one agent, whom the mask
    names, while `("agents", "waiting")` names the others that are in. Each agent's
    reward is what the turn has given to it. Returns go through the steps that an agent waits, the
    critic learns from them, and the actor from those in which the agent acts.

    An `"action_mask"` among the observations is bool `[A, n]` here. Agents that do not act are
    allowed everything, so that `ActionMask(("agents", "action"), ("agents", "action_mask"))` and
    distributions with a mask take it as it is.

    Args:
        env: of PettingZoo, parallel or AEC. It is known by its methods; nothing is imported.
        groups: the agents of each group by its name. Where None all agents are one group,
            `"agents"`, if they have the same spaces, and else one for each kind of spaces, with the
            name that its agents have in common.
        categorical_action_encoding: take choices as int64 numbers instead of one-hot vectors.

    Attributes:
        groups: the groups, by name.

    Raises:
        TypeError: it is no environment of PettingZoo; later on, `reset` or `step` return something
            else than PettingZoo's.
        ValueError: the agents of a group have different spaces, or not every agent is in one group.
        KeyError: later on, an agent that acts has no observation, reward or flag.

    Example:
        >>> from pettingzoo.butterfly import pistonball_v6  # doctest: +SKIP
        >>> env = PettingZooEnv(pistonball_v6.parallel_env())  # doctest: +SKIP
        >>> env.rollout(3)["agents", "observation"].shape  # doctest: +SKIP
        torch.Size([3, 20, 457, 120, 3])
    """

    def __init__(
        self,
        env: Any,
        groups: Mapping[str, Sequence[str]] | None = None,
        *,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(env, type) or not hasattr(env, "possible_agents"):
            came = f"the class {env.__name__}" if isinstance(env, type) else type(env).__name__
            msg = (
                f"expected an environment of PettingZoo: got {came}. Its modules make one, as "
                "tictactoe_v3.env() or rps_v2.parallel_env()."
            )
            raise TypeError(msg)
        self.env = env
        self._in_turns = hasattr(env, "agent_iter")
        self._seed: int | None = None
        named = groups_by_space(env) if groups is None else groups
        listed = sorted(agent for agents in named.values() for agent in agents)
        if listed != sorted(env.possible_agents):
            msg = f"groups: expected each of {list(env.possible_agents)} once, got {dict(named)}."
            raise ValueError(msg)
        one_hot = not categorical_action_encoding
        self.groups = {
            name: AgentGroup.of(env, name, agents, one_hot=one_hot, takes_turns=self._in_turns)
            for name, agents in named.items()
        }
        parts = self.groups.items()
        self.observation_spec = Composite({name: group.observation for name, group in parts})
        self.action_spec = Composite({name: group.action for name, group in parts})
        self.reward_spec = Composite({name: group.reward for name, group in parts})
        root = {name: Binary(shape=(1,), dtype=torch.bool, device="cpu") for name in keys.DONE_KEYS}
        self.done_spec = Composite({**{name: group.done for name, group in parts}, **root})
        # copies: an environment may change an array that it returned
        self._last: dict[str, dict[KeyPath, Array]] = {}
        self._flags: dict[str, tuple[bool, bool]] = {}  # of agents that have joined

    @property
    def stepped_objects(self) -> Iterator[object]:
        """The environment of PettingZoo."""
        yield getattr(self.env, "unwrapped", self.env)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        found = self.env.reset(seed=self._seed, **kwargs)
        self._seed = None
        self._flags = dict.fromkeys(self.env.agents, _IN)
        self._last = {name: group.unseen() for name, group in self.groups.items()}
        if self._in_turns:
            self._look()
        else:
            self._see(_parts("reset", found, _RESET)[0])
        return self._shown()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chosen: dict[str, Any] = {}
        for name, group in self.groups.items():
            chosen |= group.actions(tensordict.get(name), self._acting())
        rewards = self._turn(chosen) if self._in_turns else self._together(chosen)
        after = self._shown()
        for name, group in self.groups.items():
            after.get(name).update(group.results(rewards, self._flags))
        over = torch.tensor([not self._going()], device="cpu")
        ended = torch.tensor([all(flags[0] for flags in self._flags.values())], device="cpu")
        after.set(keys.TERMINATED, over & ended)
        return after.set(keys.TRUNCATED, over & ~ended)

    def _together(self, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        """Step all agents that are in."""
        rewards: Mapping[str, Any]
        parts = _parts("step", self.env.step(chosen), _STEP)
        seen, rewards, terminated, truncated, _ = parts
        for name, part in zip(_STEP[1:4], parts[1:4], strict=True):
            _require(part, chosen, name)
        # the next observation of an agent that is terminated is worth nothing, and may be left out
        _require(seen, [agent for agent in chosen if not terminated[agent]], _STEP[0])
        self._see(seen)
        for agent in chosen:
            self._flags[agent] = bool(terminated[agent]), bool(truncated[agent])
        return rewards

    def _turn(self, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        """Step the agent whose turn it is; agents that are out leave before the next turn."""
        env = self.env
        env.step(chosen[env.agent_selection])
        rewards = dict(env.rewards)
        self._look()
        for agent in list(env.agents):
            self._flags[agent] = bool(env.terminations[agent]), bool(env.truncations[agent])
        while env.agents and any(self._flags.get(env.agent_selection, _IN)):
            env.step(None)
        return rewards

    def _look(self) -> None:
        """Ask what each agent sees, where they take turns."""
        self._see({agent: self.env.observe(agent) for agent in self.env.agents})

    def _see(self, seen: Mapping[str, Any]) -> None:
        for name, group in self.groups.items():
            group.see(self._last[name], seen)

    def _going(self) -> list[str]:
        return [agent for agent in self.env.agents if not any(self._flags.get(agent, _IN))]

    def _acting(self) -> list[str]:
        if self._in_turns:
            return [self.env.agent_selection] if self.env.agents else []
        return self._going()

    def _shown(self) -> TensorDictBase:
        acting, going = self._acting(), self._going()
        groups = {
            name: group.shown(self._last[name], acting, going)
            for name, group in self.groups.items()
        }
        return build(groups, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        self._seed = int(np.uint32(seed))  # what generators of numpy before Gymnasium take

    def _close(self) -> None:
        self.env.close()

    def __repr__(self) -> str:
        return f"PettingZooEnv({self.env}, groups={list(self.groups)})"


def _parts(method: str, found: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """What a method returned; raise where it has other parts than PettingZoo's."""
    if not isinstance(found, tuple) or len(found) != len(names):
        came = f"{len(found)} parts" if isinstance(found, tuple) else type(found).__name__
        msg = f"{method}() of the environment must return ({', '.join(names)}): got {came}."
        raise TypeError(msg)
    return found


def _require(part: Mapping[str, Any], agents: Iterable[str], name: str) -> None:
    """Raise where agents that act are left out."""
    lacking = [agent for agent in agents if agent not in part]
    if lacking:
        msg = f"step() of the environment gave no {name} of {lacking}, which act: got {list(part)}."
        raise KeyError(msg)
