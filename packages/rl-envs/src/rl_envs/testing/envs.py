"""Tiny environments with known trajectories, for tests of code that uses environments.

None is random, so every row that they give can be foretold. All of them save their state.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.env import EnvBase
from rl_specs import Binary, Composite, OneHot, Unbounded
from rl_tensordict import build

Ending = Literal["terminated", "truncated"]


class ScriptedEnv(EnvBase):
    """Plays episodes of given lengths and endings, whatever the actions are.

    Rows are independent: row b of a batch of B plays episodes b, b + B, b + 2 B, and so on, and
    episode e takes the ending at e modulo their number. Subclasses say what is shown.

    Args:
        endings: length and ending of the episodes, in turn.
        batch_size: sizes `[*B]`.
        first_episode: number of the first episode, to tell environments apart.

    Example:
        >>> env = EpisodeStepEnv([(2, "truncated"), (1, "terminated")])
        >>> env.rollout(3, break_when_any_done=False)["next", "terminated"].flatten().tolist()
        [False, False, True]
    """

    def __init__(
        self,
        endings: Sequence[tuple[int, Ending]] = ((5, "terminated"),),
        batch_size: Any = (),
        first_episode: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size)
        self.endings = list(endings)
        rows = torch.arange(self.batch_size.numel(), device=self.device).reshape(self.batch_size)
        self._episode = rows + first_episode - self.batch_size.numel()
        self._count = torch.zeros(self.batch_size, dtype=torch.int64, device=self.device)
        self.action_spec = OneHot(2, shape=(*self.batch_size, 2), device=self.device)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        if tensordict is not None:
            mask = self._mask(tensordict)
        self._episode = torch.where(mask, self._episode + mask.numel(), self._episode)
        self._count = torch.where(mask, 0, self._count)
        return self._show()

    def _mask(self, tensordict: TensorDictBase) -> Tensor:
        mask: Tensor = tensordict["_reset"].squeeze(-1)
        return mask

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._count = self._count + 1
        which = self._episode % len(self.endings)
        lengths = torch.tensor([length for length, _ in self.endings], device=self.device)[which]
        kinds = [ending == "terminated" for _, ending in self.endings]
        terminates = torch.tensor(kinds, device=self.device)[which]
        over = self._count >= lengths
        after = self._show()
        self._finish(after, over & terminates, over & ~terminates)
        return after

    def _show(self) -> TensorDictBase:
        raise NotImplementedError

    def _finish(self, after: TensorDictBase, terminated: Tensor, truncated: Tensor) -> None:
        """Write rewards and done flags; rows `[*B]`."""
        after.set("reward", self._count.to(torch.float32).unsqueeze(-1))
        after.set("terminated", terminated.unsqueeze(-1))
        after.set("truncated", truncated.unsqueeze(-1))

    def _set_seed(self, seed: int) -> None:
        """Nothing is random here."""

    def _get_state(self) -> dict[str, Any]:
        return {"episode": self._episode.clone(), "count": self._count.clone()}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._episode, self._count = state["episode"].clone(), state["count"].clone()


class CountingEnv(ScriptedEnv):
    """Shows how many steps were taken, and ends after some.

    Observation float32 `[*B, 1]`, action one-hot bool `[*B, 2]`, reward 1 for every step.
    `CountingEnv(1)` ends on its first step; `ending="truncated"` truncates.

    Args:
        max_steps: length of every episode.
        batch_size: sizes `[*B]`.
        ending: how episodes end.

    Example:
        >>> env = CountingEnv(2, ending="truncated")
        >>> env.rollout(5)["next", "truncated"].flatten().tolist()
        [False, True]
    """

    def __init__(
        self, max_steps: int = 5, batch_size: Any = (), ending: Ending = "terminated"
    ) -> None:
        super().__init__([(max_steps, ending)], batch_size)
        self.observation_spec = Unbounded((*self.batch_size, 1), device=self.device)

    def _show(self) -> TensorDictBase:
        seen = self._count.to(torch.float32).unsqueeze(-1)
        return build({"observation": seen}, self.batch_size)

    def _finish(self, after: TensorDictBase, terminated: Tensor, truncated: Tensor) -> None:
        super()._finish(after, terminated, truncated)
        after.set("reward", torch.ones(*self.batch_size, 1, device=self.device))


class EpisodeStepEnv(ScriptedEnv):
    """Shows (episode, step) in every observation, so that the neighbours of any row are proved.

    Observation float32 `[*B, 2]`, action one-hot bool `[*B, 2]`; the reward is the number of the
    step just taken, from 1.

    Args:
        endings: length and ending of the episodes, in turn.
        batch_size: sizes `[*B]`.
        first_episode: number of the first episode.

    Example:
        >>> EpisodeStepEnv([(2, "terminated")]).rollout(4)["observation"].tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        endings: Sequence[tuple[int, Ending]] = ((3, "terminated"), (2, "truncated")),
        batch_size: Any = (),
        first_episode: int = 0,
    ) -> None:
        super().__init__(endings, batch_size, first_episode)
        self.observation_spec = Unbounded((*self.batch_size, 2), device=self.device)

    def _show(self) -> TensorDictBase:
        seen = torch.stack([self._episode, self._count], -1).to(torch.float32)
        return build({"observation": seen}, self.batch_size)


class NestedEnv(ScriptedEnv):
    """A counter whose observation, action and reward are under `"data"`.

    `("data", "observation")` float32 `[*B, 3]`, `("data", "action")` one-hot bool `[*B, 2]`,
    `("data", "reward")` `[*B, 1]`; the done flags are at the root.

    Args:
        endings: length and ending of the episodes, in turn.
        batch_size: sizes `[*B]`.

    Example:
        >>> NestedEnv([(2, "terminated")]).rollout(4)["data", "observation"].shape
        torch.Size([2, 3])
    """

    def __init__(
        self, endings: Sequence[tuple[int, Ending]] = ((5, "terminated"),), batch_size: Any = ()
    ) -> None:
        super().__init__(endings, batch_size)
        self.observation_spec = self._under_data(
            "observation", Unbounded((*self.batch_size, 3), device=self.device)
        )
        self.action_spec = self._under_data(
            "action", OneHot(2, shape=(*self.batch_size, 2), device=self.device)
        )
        self.reward_spec = self._under_data(
            "reward", Unbounded((*self.batch_size, 1), device=self.device)
        )

    def _under_data(self, name: str, leaf: Any) -> Composite:
        inner = Composite({name: leaf}, shape=self.batch_size)
        return Composite(data=inner, shape=self.batch_size)

    def _show(self) -> TensorDictBase:
        seen = self._count.to(torch.float32).unsqueeze(-1).expand(*self.batch_size, 3)
        return build({"data": build({"observation": seen}, self.batch_size)}, self.batch_size)

    def _finish(self, after: TensorDictBase, terminated: Tensor, truncated: Tensor) -> None:
        after.set(("data", "reward"), torch.ones(*self.batch_size, 1, device=self.device))
        after.set("terminated", terminated.unsqueeze(-1))
        after.set("truncated", truncated.unsqueeze(-1))


class GroupsEnv(EnvBase):
    """Two groups with done flags of their own, and none at the root.

    Each group counts its own steps: `(group, "observation")` float32 `[1]`,
    `(group, "reward")` `[1]`. One action moves both.

    Args:
        lengths: after how many steps each group terminates, by its name.

    Example:
        >>> env = GroupsEnv({"first": 2, "second": 3})
        >>> env.done_groups
        [('first',), ('second',)]
    """

    def __init__(self, lengths: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.lengths = {"first": 2, "second": 3} if lengths is None else dict(lengths)
        self._counts = dict.fromkeys(self.lengths, 0)
        self.observation_spec = self._each(
            lambda: Composite(observation=Unbounded((1,), device=self.device))
        )
        self.reward_spec = self._each(lambda: Composite(reward=Unbounded((1,), device=self.device)))
        flag = Binary(shape=(1,), dtype=torch.bool, device=self.device)
        self.done_spec = self._each(lambda: Composite(terminated=flag))
        self.action_spec = OneHot(2, device=self.device)

    def _each(self, make: Any) -> Composite:
        return Composite({name: make() for name in self.lengths})

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        for name in self.lengths:
            none = torch.zeros(1, dtype=torch.bool, device=self.device)
            if tensordict is None or bool(tensordict.get((name, "_reset"), none)):
                self._counts[name] = 0
        return self._show()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        for name in self.lengths:
            self._counts[name] += 1
        after = self._show()
        for name, length in self.lengths.items():
            after.set((name, "reward"), torch.ones(1, device=self.device))
            after.set(
                (name, "terminated"),
                torch.tensor([self._counts[name] >= length], device=self.device),
            )
        return after

    def _show(self) -> TensorDictBase:
        seen = {
            name: build(
                {"observation": torch.tensor([float(count)], device=self.device)}, self.batch_size
            )
            for name, count in self._counts.items()
        }
        return build(seen, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        """Nothing is random here."""

    def _get_state(self) -> dict[str, Any]:
        return dict(self._counts)

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._counts = dict(state)


class MultiAgentEnv(ScriptedEnv):
    """Agents under `"agents"`, each with its own reward and done flag, and a done flag for all.

    `("agents", "observation")` float32 `[*B, A, 2]` shows (step, agent), `("agents", "action")` is
    one-hot bool `[*B, A, 3]`, `("agents", "reward")` `[*B, A, 1]`. Agent a is done from its step
    a + 1 on; the episode ends as scripted.

    Args:
        num_agents: A.
        endings: length and ending of the episodes, in turn.
        batch_size: sizes `[*B]`.

    Example:
        >>> MultiAgentEnv(4).rollout(2)["next", "agents", "done"][-1].flatten().tolist()
        [True, True, False, False]
    """

    def __init__(
        self,
        num_agents: int = 2,
        endings: Sequence[tuple[int, Ending]] = ((5, "terminated"),),
        batch_size: Any = (),
    ) -> None:
        super().__init__(endings, batch_size)
        self.num_agents = num_agents
        flag = Binary(shape=(*self.batch_size, 1), dtype=torch.bool, device=self.device)
        agents = Binary(
            shape=(*self.batch_size, num_agents, 1), dtype=torch.bool, device=self.device
        )
        self.observation_spec = self._agents(
            observation=Unbounded(self._sizes(2), device=self.device)
        )
        self.action_spec = self._agents(action=OneHot(3, shape=self._sizes(3), device=self.device))
        self.reward_spec = self._agents(reward=Unbounded(self._sizes(1), device=self.device))
        done = self._agents(terminated=agents)
        done.set("terminated", flag)
        self.done_spec = done

    def _sizes(self, size: int) -> tuple[int, ...]:
        return (*self.batch_size, self.num_agents, size)

    def _agents(self, **leaf: Any) -> Composite:
        inner = Composite(leaf, shape=self._sizes(0)[:-1])
        return Composite(agents=inner, shape=self.batch_size)

    def _show(self) -> TensorDictBase:
        agents = torch.arange(self.num_agents, device=self.device).expand(self._sizes(0)[:-1])
        counts = self._count.unsqueeze(-1).expand_as(agents)
        seen = torch.stack([counts, agents], -1).to(torch.float32)
        group = build({"observation": seen}, agents.shape)
        return build({"agents": group}, self.batch_size)

    def _finish(self, after: TensorDictBase, terminated: Tensor, truncated: Tensor) -> None:
        out = self._count.unsqueeze(-1) > torch.arange(self.num_agents, device=self.device)
        after.set(("agents", "reward"), torch.ones(self._sizes(1), device=self.device))
        after.set(("agents", "terminated"), out.unsqueeze(-1))
        after.set("terminated", terminated.unsqueeze(-1))
        after.set("truncated", truncated.unsqueeze(-1))


class FailingEnv(CountingEnv):
    """Counts, and fails on one step; subclasses say how.

    Args:
        at_step: the step of each episode that fails, from 1.

    Example:
        >>> FailingEnv(at_step=2).rollout(1)["next", "observation"].item()
        1.0
    """

    def __init__(self, at_step: int = 1) -> None:
        super().__init__()
        self.at_step = at_step

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        after = super()._step(tensordict)
        if int(self._count) == self.at_step:
            self._fail()
        return after

    def _fail(self) -> None:
        raise NotImplementedError


class RaisingEnv(FailingEnv):
    """Counts, and raises a `ZeroDivisionError` on one step.

    Args:
        at_step: the step of each episode that raises, from 1.

    Example:
        >>> RaisingEnv(at_step=2).rollout(1)["next", "observation"].item()
        1.0
    """

    def _fail(self) -> None:
        msg = f"step {self.at_step} of this environment always fails"
        raise ZeroDivisionError(msg)


class DyingEnv(FailingEnv):
    """Counts, and kills its own process on one step. Never step it in a process that you need.

    Args:
        at_step: the step of each episode that kills, from 1.

    Example:
        >>> DyingEnv(at_step=2).rollout(1)["next", "observation"].item()
        1.0
    """

    def _fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
