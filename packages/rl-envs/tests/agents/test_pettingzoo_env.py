"""Environments with the methods of PettingZoo, whose episodes are known."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_envs import PettingZooEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_specs import OneHot
from rl_transforms import ActionMask


class Together:
    """Agent i leaves after i + 2 steps: the last by truncation, others because they are done."""

    possible_agents = ["runner_0", "runner_1", "chaser_0"]  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, alike=True):
        self.alike, self.seen = alike, []

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        size = 2 if self.alike or agent != "chaser_0" else 3
        return spaces.Box(0, 99, (size,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.time, self.seed = list(self.possible_agents), 0, seed
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.seen.append(dict(actions))
        assert list(actions) == self.agents
        self.time += 1
        here = list(self.agents)
        over = {agent: self.time == self.possible_agents.index(agent) + 2 for agent in here}
        terminated = {agent: over[agent] and agent != "chaser_0" for agent in here}
        truncated = {agent: over[agent] and agent == "chaser_0" for agent in here}
        self.agents = [agent for agent in here if not over[agent]]
        rewards = {agent: float(actions[agent]) for agent in here}
        return self._observations(here), rewards, terminated, truncated, {a: {} for a in here}

    def _observations(self, agents):
        return {a: np.full(self.observation_space(a).shape, self.time, np.float32) for a in agents}

    def close(self):
        pass


class InTurns:
    """Two players add one in turn; who reaches 3 has won."""

    possible_agents = ["first", "second"]  # noqa: RUF012 - as PettingZoo has it

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        legal = spaces.Box(0, 1, (2,), np.int8)
        return spaces.Dict({"observation": spaces.Discrete(4), "action_mask": legal})

    def action_space(self, agent):
        return spaces.Discrete(2)

    def agent_iter(self):
        raise NotImplementedError

    def reset(self, seed=None, options=None):
        self.agents, self.count, self.turn = list(self.possible_agents), 0, 0
        self.rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.agent_selection = "first"

    def observe(self, agent):
        return {"observation": self.count, "action_mask": np.array([1, agent == "first"], np.int8)}

    def step(self, action):
        if action is None:
            assert self.terminations[self.agent_selection]
            self.agents.remove(self.agent_selection)
            if self.agents:
                self.agent_selection = self.agents[0]
            return
        self.count, mover = self.count + int(action), self.agent_selection
        other = "second" if mover == "first" else "first"
        won = self.count == 3
        self.rewards = {mover: int(won), other: -int(won)}
        self.terminations = dict.fromkeys(self.agents, won)
        self.agent_selection = other

    def close(self):
        pass


def always(env, choice):
    def act(root):
        for key in env.action_keys:
            spec = env.full_action_spec[key]
            number = torch.full(spec.shape[:1], choice)
            root.set(key, torch.nn.functional.one_hot(number, spec.shape[-1]).bool())
        return root

    return act


def test_agents_leave_one_by_one():
    base = Together()
    env = PettingZooEnv(base)
    check_env_specs(env)
    base.seen.clear()
    batch = env.rollout(9, always(env, 2))
    group, after = batch["agents"], batch["next", "agents"]
    assert batch.shape == (4,)
    assert group["mask"].squeeze(-1).tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert after["reward"].squeeze(-1).tolist() == [[2, 2, 2], [2, 2, 2], [0, 2, 2], [0, 0, 2]]
    assert after["terminated"].squeeze(-1).tolist()[-1] == [True, True, False]
    assert after["truncated"].squeeze(-1).tolist()[-1] == [False, False, True]
    assert after["observation"][:, 0, 0].tolist() == [1, 2, 2, 2]  # the last one is repeated
    assert batch["next", "done"].flatten().tolist() == [False, False, False, True]
    assert batch["next", "truncated"][-1]  # one of them could have gone on
    assert [sorted(one) for one in base.seen][-1] == ["chaser_0"]


def test_agents_of_other_spaces_are_other_groups():
    env = PettingZooEnv(Together(alike=False))
    assert {name: group.agents for name, group in env.groups.items()} == {
        "runner": ["runner_0", "runner_1"],
        "chaser": ["chaser_0"],
    }
    batch = env.rollout(9)
    assert batch["runner", "observation"].shape == (4, 2, 2)
    assert batch["chaser", "action"].shape == (4, 1, 3)
    assert env.full_action_spec["chaser", "action"] == OneHot(3).expand(1, 3).to("cpu")


def test_agents_in_turns():
    env = PettingZooEnv(InTurns())
    check_env_specs(env)
    batch = env.rollout(9, always(env, 1))
    assert batch["agents", "mask"].squeeze(-1).tolist() == [[1, 0], [0, 1], [1, 0]]
    assert batch["next", "agents", "reward"].squeeze(-1).tolist() == [[0, 0], [0, 0], [1, -1]]
    assert batch["next", "done"].flatten().tolist() == [False, False, True]
    assert batch["agents", "observation"][:, 0].tolist() == [0, 1, 2]
    assert batch["agents", "waiting"].squeeze(-1).tolist() == [[0, 1], [1, 0], [0, 1]]
    assert batch["next", "agents", "waiting"][-1].flatten().tolist() == [False, False]  # out
    assert "waiting" not in PettingZooEnv(Together()).observation_spec["agents"]


def test_action_masks_are_flags_that_allow_everything_to_agents_that_wait():
    env = PettingZooEnv(InTurns())
    batch = env.rollout(9, always(env, 1))
    assert batch["agents", "action_mask"].dtype == torch.bool
    assert batch["agents", "action_mask"].tolist() == [
        [[True, True], [True, True]],
        [[True, True], [True, False]],
        [[True, True], [True, True]],
    ]
    assert batch["next", "agents", "action_mask"][-1].all()


@pytest.mark.parametrize("count", [1, 2])
def test_random_actions_obey_masks_of_agents_in_turns(count):
    masked = ActionMask(("agents", "action"), ("agents", "action_mask"))
    env = TransformedEnv(SerialEnv(count, lambda: PettingZooEnv(InTurns())), masked)
    batch = env.rollout(40, break_when_any_done=False)["agents"]
    second = batch["mask"][:, :, 1, 0]
    assert not batch["action"][:, :, 1, 1][second].any()
    assert batch["action"][:, :, 0, 1][~second].any()


def test_agents_that_are_left_out_are_named():
    class Lacking(Together):
        lacks = None

        def step(self, actions):
            parts = super().step(actions)
            parts[self.lacks].pop("runner_1", None)
            return parts

    for place, name in enumerate(("observations", "rewards", "terminations", "truncations")):
        base = Lacking()
        base.lacks = place
        with pytest.raises(KeyError, match=rf"gave no {name} of \['runner_1'\], which act"):
            PettingZooEnv(base).rollout(2)


def test_an_agent_that_terminates_may_leave_out_its_last_observation():
    class Silent(Together):
        def step(self, actions):
            seen, rewards, terminated, *rest = super().step(actions)
            return {a: s for a, s in seen.items() if not terminated[a]}, rewards, terminated, *rest

    env = PettingZooEnv(Silent())
    batch = env.rollout(9, always(env, 2))
    assert batch["next", "agents", "terminated"][1, 0]
    assert batch["next", "agents", "observation"][:, 0, 0].tolist() == [1, 1, 1, 1]


def test_the_root_terminates_where_all_that_have_been_in_are_terminated():
    class Early(Together):
        def reset(self, seed=None, options=None):
            super().reset(seed)
            self.agents = ["runner_0", "runner_1"]  # and the chaser joins no episode
            return self._observations(self.agents), {agent: {} for agent in self.agents}

    batch = PettingZooEnv(Early()).rollout(9)
    assert batch["next", "terminated"].flatten().tolist() == [False, False, True]
    assert not batch["next", "truncated"].any()
    assert not batch["next", "agents", "done"][:, 2].any()


def test_agents_that_are_out_keep_their_last_observation_where_arrays_are_written_again():
    class InPlace(Together):
        def _observations(self, agents):
            whole = self.__dict__.setdefault("whole", np.zeros((3, 2), np.float32))
            whole[:] = self.time
            return {a: whole[self.possible_agents.index(a)] for a in agents}

    env = PettingZooEnv(InPlace())
    batch = env.rollout(9, always(env, 2))
    assert batch["next", "agents", "observation"][:, :, 0].T.tolist() == [
        [1, 2, 2, 2],
        [1, 2, 3, 3],
        [1, 2, 3, 4],
    ]


def test_methods_of_other_interfaces_are_named():
    class Bare(Together):
        def reset(self, seed=None, options=None):
            return super().reset(seed)[0]

    class Four(Together):
        def step(self, actions):
            return super().step(actions)[:4]

    with pytest.raises(
        TypeError, match=r"reset\(\) .* must return \(observations, infos\): got dict"
    ):
        PettingZooEnv(Bare()).reset()
    with pytest.raises(TypeError, match=r"step\(\) .* truncations, infos\): got 4 parts"):
        PettingZooEnv(Four()).rollout(2)


def test_episodes_follow_one_another_and_batches_of_them():
    env = SerialEnv(2, lambda: PettingZooEnv(InTurns()))
    batch = env.rollout(7, break_when_any_done=False)
    assert batch["agents", "mask"].sum(2).flatten().tolist() == [1] * 14


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="expected an environment of PettingZoo: got int"):
        PettingZooEnv(3)
    with pytest.raises(TypeError, match=r"got the class Together\. Its modules make one"):
        PettingZooEnv(Together)
    with pytest.raises(ValueError, match=r"groups: expected each of .* once"):
        PettingZooEnv(Together(), {"all": ["runner_0"]})
    with pytest.raises(ValueError, match="of 'all' have different spaces"):
        PettingZooEnv(Together(alike=False), {"all": Together.possible_agents})


@pytest.mark.filterwarnings("ignore")
def test_environments_of_pettingzoo():
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import rps_v2, tictactoe_v3

    for make in (rps_v2.parallel_env, rps_v2.env, tictactoe_v3.env):
        env = PettingZooEnv(make())
        check_env_specs(env)
        env.set_seed(0)
        assert env.rollout(5)["agents", "action"].shape[1] == 2
