"""Every kind of environment with every option that decides where data is cut."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv, GroupsEnv, MultiAgentEnv, NestedEnv
from rl_layout import check_layout, keys
from rl_transforms import Compose, InitTracker, RewardSum, StepCounter

NAME = "CartPole-v1"
ENDINGS = ((4, "terminated"), (3, "truncated"))


def vector(mode):
    return GymVectorEnv(NAME, 3, vectorization_mode=mode)


def changed(env):
    return TransformedEnv(env, Compose(InitTracker(), RewardSum(), StepCounter()))


ENVIRONMENTS = {
    "gym": lambda: GymEnv(NAME),
    "serial": lambda: SerialEnv(3, lambda: GymEnv(NAME)),
    "parallel": lambda: ParallelEnv(2, lambda: GymEnv(NAME), mp_start_method="fork"),
    "sync vector": lambda: vector("sync"),
    "native vector": lambda: vector("vector_entry_point"),
    "transformed": lambda: changed(SerialEnv(2, lambda: GymEnv(NAME))),
    "transformed native vector": lambda: changed(vector("vector_entry_point")),
    "counting": lambda: CountingEnv(4, (2,)),
    "serial counting": lambda: SerialEnv(2, lambda: CountingEnv(3)),
    "nested": lambda: NestedEnv(ENDINGS, (3,)),
    "groups": lambda: GroupsEnv(),
    "agents": lambda: MultiAgentEnv(3, ENDINGS, (2,)),
}
OPTIONS = {
    "nothing": {},
    "cuts": {"set_truncated": True},
    "resets": {"reset_at_each_iter": True},
    "random": {"init_random_frames": 13},
    "whole": {"trajs_per_batch": 2, "max_unfinished_frames": 40},
}
SAVEABLE = sorted(ENVIRONMENTS.keys() - {"sync vector", "native vector"})
SAVEABLE.remove("transformed native vector")


def numbers(rows):
    return rows["collector", "traj_ids"] * 1000 + rows["collector", "traj_step"]


def assert_genuine(rows, env):
    """No step twice, no hole, and each next observation is the one after it."""
    shown = [keys.as_tuple(key) for key in env.observation_spec.keys(True, True)]
    assert len(numbers(rows).unique()) == len(rows)
    for number in rows["collector", "traj_ids"].unique():
        one = rows[rows["collector", "traj_ids"] == number]
        assert one["collector", "traj_step"].tolist() == list(range(len(one)))
        assert one["is_init"].flatten().tolist() == [True] + [False] * (len(one) - 1)
        if () not in env.done_groups:
            continue  # a group is reset for itself, while the trajectory continues
        for key in shown:
            if key[-1] != "is_init":
                assert torch.equal(one[("next", *key)][:-1], one[key][1:]), key


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_step_is_lost_and_none_comes_twice(name, option):
    torch.manual_seed(0)
    options = {"frames_per_batch": 24, "total_frames": 96, **OPTIONS[option]}
    with Collector(ENVIRONMENTS[name](), **options) as collector:
        collector.set_seed(0)
        batches = list(collector)
        held, frames = collector.stats()["unfinished_frames"], collector.frames
        rows = torch.cat([batch.reshape(-1) for batch in batches])
        assert_genuine(rows, collector.env)
    assert len(rows) + held == frames >= 96
    findings = check_layout(torch.cat(batches, -1)).findings
    assert not [one for one in findings if one.severity != "note"]
    assert not [one for one in findings if "is missing" in one.message]


@pytest.mark.parametrize("option", ["nothing", "random"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_data_does_not_depend_on_the_size_of_batches(name, option):
    def played(frames):
        options = {"frames_per_batch": frames, "total_frames": 96, "producer": 3}
        with Collector(ENVIRONMENTS[name](), **options, **OPTIONS[option]) as collector:
            collector.set_seed(0)
            torch.manual_seed(1)
            return torch.cat(list(collector), -1)

    few, many = played(6), played(48)
    assert (few[..., : many.shape[-1]] == many).all()
    assert set(few.keys(True, True)) == set(many.keys(True, True))


@pytest.mark.parametrize("trajs_per_batch", [None, 2])
@pytest.mark.parametrize("name", SAVEABLE)
def test_a_saved_collector_goes_on_bit_for_bit(name, trajs_per_batch):
    options = {"frames_per_batch": 18, "trajs_per_batch": trajs_per_batch}
    with Collector(ENVIRONMENTS[name](), **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        expected = [collector.next() for _ in range(2)]
    with Collector(ENVIRONMENTS[name](), **options) as other:
        other.load_state_dict(state)
        for batch in expected:
            found = other.next()
            assert (found == batch).all()
            assert str(found) == str(batch)  # nested batch sizes as well


def test_groups_begin_behind_their_own_end_also_across_batches():
    collector = Collector(GroupsEnv({"first": 2, "second": 3}), frames_per_batch=2)
    rows = torch.cat([collector.next() for _ in range(4)])
    first, second = (rows[name, "is_init"].flatten().tolist() for name in ("first", "second"))
    assert first == [True, False] * 4
    assert second == [True, False, False] * 2 + [True, False]
    assert rows["is_init"].flatten().tolist() == [True] + [False] * 5 + [True, False]
    assert collector.stats()["episodes"] == 1
    assert collector.stats()["mean_return"] == 12


class Remembers:
    """Writes how often it has acted in this trajectory, a state that no environment knows."""

    def __call__(self, root):
        count = root.get("count", torch.zeros(1))
        root["action"] = torch.tensor([True, False])
        return root.set(("next", "count"), count + 1).set("count", count)


def test_state_that_a_policy_carries_crosses_batches():
    def counts(frames):
        collector = Collector(CountingEnv(100), Remembers(), frames_per_batch=frames)
        return [
            n for _ in range(12 // frames) for n in collector.next()["count"].flatten().tolist()
        ]

    assert counts(3) == list(range(12))
    assert counts(12) == list(range(12))


class FailsOnce(CountingEnv):
    """Raises in its seventh step of all, after it has gone on."""

    taken = 0

    def _step(self, tensordict):
        after = super()._step(tensordict)
        self.taken += 1
        if self.taken == 7:
            raise ZeroDivisionError("once")
        return after


@pytest.mark.parametrize("whole", [{}, {"trajs_per_batch": 1}])
def test_after_an_error_new_trajectories_begin_and_no_step_joins_what_is_apart(whole):
    collector = Collector(FailsOnce(20), frames_per_batch=4, **whole)
    batches = [collector.next()] if not whole else []
    with pytest.raises(ZeroDivisionError, match="once"):
        collector.next()
    batches += [collector.next() for _ in range(3)]
    rows = torch.cat(batches)
    assert_genuine(rows, collector.env)
    assert torch.equal(rows["observation"][:, 0], rows["collector", "traj_step"].float())


def test_random_frames_end_where_they_were_asked_to():
    net = nn.Linear(1, 2)
    acting = TensorDictModule(
        lambda seen: (torch.tensor([True, False]), net(seen).sum(-1)),
        ["observation"],
        ["action", "action_log_prob"],
    )
    for frames in (2, 30):
        collector = Collector(
            CountingEnv(9), acting, frames_per_batch=frames, total_frames=30, init_random_frames=13
        )
        rows = torch.cat(list(collector))
        assert rows["action_log_prob"].isnan().flatten().tolist() == [True] * 13 + [False] * 17
        assert rows["action"][13:, 0].all()
        assert not rows["action"][:13, 0].all()


def test_random_actions_let_transforms_wait():
    class Counter(StepCounter):
        """Counts how often it is stepped."""

        stepped = 0

        def step(self, root, after):
            self.stepped += 1
            return super().step(root, after)

    counter = Counter()
    env = TransformedEnv(GymEnv(NAME), counter)
    acting = TensorDictModule(lambda seen: torch.tensor([True, False]), ["observation"], ["action"])
    collector = Collector(env, acting, frames_per_batch=5, init_random_frames=5)
    assert collector.next()["step_count"].flatten()[0] == 0
    assert counter.stepped == 0


def test_profiler_ranges_are_named_where_they_are_switched_on():
    for profile in (False, True):
        acting = TensorDictModule(
            lambda seen: torch.tensor([True, False]), ["observation"], ["action"]
        )
        collector = Collector(CountingEnv(), acting, frames_per_batch=3, profile=profile)
        with torch.profiler.profile() as found:
            collector.next()
        counts = {event.key: event.count for event in found.key_averages()}
        named = {name: count for name, count in counts.items() if name.startswith("rl_collect")}
        expected = {"rollout": 1, "policy": 3, "marks": 1, "store": 1, "hand_out": 1}
        assert named == ({f"rl_collect.{k}": v for k, v in expected.items()} if profile else {})


def test_a_policy_that_writes_no_action_or_a_wrong_one_is_refused():
    with pytest.raises(KeyError, match=r"writes \['choice'\].*takes \['action'\]"):
        Collector(
            CountingEnv(),
            TensorDictModule(nn.Linear(1, 2), ["observation"], ["choice"]),
            frames_per_batch=3,
        )
    env = CountingEnv()
    wrong = TensorDictModule(
        lambda seen: torch.zeros(3, dtype=torch.bool), ["observation"], ["action"]
    )
    with pytest.raises(ValueError, match="action"):
        Collector(env, wrong, frames_per_batch=3).next()
    assert int(env.state_dict()["state"]["count"]) == 0  # before the first step


class Sees:
    """A policy that writes down whether it was told that a trajectory begins."""

    def __call__(self, root):
        root["action"] = torch.nn.functional.one_hot(torch.tensor([0, 1, 0]), 2).bool()
        return root.set("saw", root["is_init"].clone())


@pytest.mark.parametrize("name", ["transformed native vector", "three in turn"])
def test_a_policy_is_told_of_a_cut(name):
    three = {"three in turn": lambda: changed(SerialEnv(3, lambda: GymEnv(NAME)))}
    options = {"frames_per_batch": 12, "set_truncated": True}
    collector = Collector((ENVIRONMENTS | three)[name](), Sees(), **options)
    for _ in range(2):  # eight steps, too few to end an episode
        batch = collector.next()
        assert batch["saw"].squeeze(-1).tolist() == [[True, False, False, False]] * 3
        assert torch.equal(batch["saw"], batch["is_init"])


def test_surplus_steps_of_a_vector_begin_a_new_trajectory_after_a_cut():
    collector = Collector(vector("vector_entry_point"), frames_per_batch=90, set_truncated=True)
    collector.set_seed(0)
    batches = [collector.next() for _ in range(3)]
    rows = torch.cat(batches, -1)
    assert collector.env.leftover is not None
    assert rows["next", "done"][:, 29::30].all()
    assert rows["is_init"][:, ::30].all()
    assert (rows["collector", "traj_step"][:, ::30] == 0).all()
    assert_genuine(rows.reshape(-1), collector.env)
    whole = Collector(vector("vector_entry_point"), frames_per_batch=270)
    whole.set_seed(0)
    assert whole.next()["observation"].shape == rows["observation"].shape
    collector.reset()
    assert (collector.next()["collector", "traj_step"][:, 0] == 0).all()


class Clocks(VectorEnv):
    """Row i shows the step and is over after i + 2 steps; last observations are not given."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    num_envs = 3

    def seen(self):
        return self.count[:, None].astype(np.float32)

    def reset(self, **_):
        self.count = np.zeros(self.num_envs, np.int64)
        return self.seen(), {}

    def step(self, actions):
        self.count += 1
        over = self.count == np.arange(self.num_envs) + 2
        self.count[over] = 0
        return self.seen(), np.ones(self.num_envs), np.zeros_like(over), over, {}


@pytest.mark.filterwarnings("ignore:.*final_obs")
def test_rows_whose_next_observation_is_missing_stay_marked():
    with Collector(GymVectorEnv(Clocks()), None, frames_per_batch=36, total_frames=108) as batches:
        for batch in batches:
            done = batch["next", "done"].squeeze(-1)
            assert done.any()
            assert torch.equal(batch[keys.NEXT_MISSING], done)
            assert (batch[keys.TRAJ_IDS] >= 0).all()
