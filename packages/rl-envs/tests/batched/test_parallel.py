"""Environments in processes: what the serial ones do, bit for bit, and how they fail."""

import os
import signal

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn.functional import one_hot

from rl_envs import EnvBase, GymEnv, SerialEnv, TransformedEnv, testing
from rl_envs.batched.parallel import ParallelEnv
from rl_specs import OneHot, Unbounded
from rl_transforms import Compose, InitTracker, StepCounter, TensorDictPrimer
from rl_workers import WorkerDied

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class GrowingEnv(EnvBase):
    """Shows as many rows as it has taken steps, and some more."""

    def __init__(self, first=2):
        super().__init__()
        self.first = self.rows = first
        self.observation_spec = Unbounded((-1, 3))
        self.action_spec = OneHot(2)

    def _reset(self, tensordict, **kwargs):
        self.rows = self.first
        return TensorDict({"observation": torch.full((self.rows, 3), float(self.rows))})

    def _step(self, tensordict):
        self.rows += 1
        over = torch.tensor([self.rows == self.first + 2])
        seen = torch.full((self.rows, 3), float(self.rows))
        return TensorDict({"observation": seen, "reward": torch.ones(1), "terminated": over})

    def _set_seed(self, seed):
        pass


class Memory(nn.Module):
    """A policy with a state, which it writes under "next"."""

    def make_tensordict_primer(self):
        return TensorDictPrimer(hidden=Unbounded((3,)), expand_specs=True)

    def forward(self, root):
        root["next", "hidden"] = root["hidden"] + 1
        turn = root["hidden"].sum(-1).long() + root["is_init"].squeeze(-1)
        return root.set("action", one_hot(turn % 2, 2).bool())


def transformed(env):
    tracked = Compose(InitTracker(), Memory().make_tensordict_primer(), StepCounter(max_steps=9))
    return TransformedEnv(env, tracked)


def cartpole():
    return GymEnv("CartPole-v1")


def make(count, *arguments, **options):
    return ParallelEnv(
        count, *arguments, **({"mp_start_method": "fork", "timeout_s": 20} | options)
    )


MAKERS = {
    "cartpole": cartpole,
    "pendulum": lambda: GymEnv("Pendulum-v1", max_episode_steps=7),
    "categorical": lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
    "episodes": testing.EpisodeStepEnv,
    "nested keys": lambda: testing.NestedEnv([(3, "truncated")]),
    "agents": lambda: testing.MultiAgentEnv(3),
    "groups": testing.GroupsEnv,
    "batch": lambda: testing.CountingEnv(4, batch_size=(2,)),
    "envs in envs": lambda: SerialEnv(2, cartpole),
}


@pytest.mark.parametrize("name", MAKERS)
def test_rollouts_are_those_of_the_serial_environment(name, assert_same):
    batches = []
    for env in (SerialEnv(3, MAKERS[name]), make(3, MAKERS[name], num_processes=2)):
        with env:
            env.set_seed(5)
            torch.manual_seed(7)
            batches += [
                [
                    env.rollout(40, break_when_any_done=False),
                    env.rollout(11),
                    env.rollout(23, env.rand_action, break_when_any_done=False),
                    env.rollout(5, callback=lambda *_: None, break_when_any_done=False),
                ]
            ]
    for one, other in zip(*batches, strict=True):
        assert_same(one, other)
        assert one.shape == other.shape


SIDES = {
    "transformed inside": lambda env, base: env(2, lambda: transformed(base())),
    "transformed outside": lambda env, base: transformed(env(2, base)),
}


@pytest.mark.parametrize("base", [cartpole, testing.EpisodeStepEnv])
@pytest.mark.parametrize("side", SIDES)
def test_transforms_and_recurrent_states_work_on_either_side(side, base, assert_same):
    batches = []
    for kind in (SerialEnv, make):
        with SIDES[side](kind, base) as env:
            env.set_seed(5)
            batches.append(env.rollout(30, Memory(), break_when_any_done=False))
    assert_same(*batches)
    assert batches[1]["step_count"].max() == (8 if base is cartpole else 2)


@pytest.mark.parametrize("name", ["cartpole", "episodes", "agents"])
def test_a_partial_reset_is_that_of_the_serial_environment(name, assert_same):
    roots = []
    for env in (SerialEnv(3, MAKERS[name]), make(3, MAKERS[name], num_processes=2)):
        with env:
            env.set_seed(5)
            torch.manual_seed(7)
            root = env.rand_step(env.reset())["next"]
            root["kept"] = torch.arange(3)
            root["_reset"] = torch.tensor([[False], [True], [False]])
            roots.append(env.reset(root))
    assert_same(*roots)
    assert roots[1]["kept"].tolist() == [0, 1, 2]


def test_seeds_go_on_from_one_environment_to_the_next():
    with make(3, cartpole) as env, SerialEnv(3, cartpole) as serial:
        assert env.set_seed(5) == serial.set_seed(5)
        assert env.set_seed(5, static_seed=True) == 5
        first = env.reset()["observation"]
        assert torch.equal(first[0], first[2])


def test_entries_that_a_policy_adds_are_kept_and_reach_the_environments():
    def policy(root):
        return env.rand_action(root).set("log_prob", torch.zeros(2, 3))

    with make(2, testing.EpisodeStepEnv) as env:
        batch = env.rollout(3, policy, break_when_any_done=False)
    assert batch["log_prob"].shape == (2, 3, 3)
    assert batch["next", "observation"][0].tolist() == [[0, 1], [0, 2], [0, 3]]


def test_environments_that_read_actions_only_are_sent_nothing_else():
    with ParallelEnv(2, lambda: GymEnv("CartPole-v1"), mp_start_method="fork") as env:
        root = env.rand_action(env.reset())
        root.set_non_tensor("note", lambda: "no process can be sent this")
        assert env.step(root)["next", "observation"].shape == (2, 4)


def test_each_environment_has_its_own_function_and_arguments():
    makers = [testing.EpisodeStepEnv] * 3
    kwargs = [{"first_episode": 10 * number} for number in range(3)]
    with make(3, makers, kwargs, num_processes=2) as env:
        assert env.reset()["observation"][:, 0].tolist() == [0, 10, 20]


def test_arguments_of_a_reset_reach_the_environments():
    with make(2, cartpole) as env:
        root = env.reset(options={"low": 0.01, "high": 0.02})
        assert (root["observation"] >= 0.01).all()


@pytest.mark.parametrize("kind", [SerialEnv, make])
def test_sizes_that_differ_lie_in_lazy_stacks(kind):
    with kind(2, GrowingEnv, [{"first": 2}, {"first": 5}]) as env:
        root = env.reset()
        assert [row["observation"].shape for row in root.unbind(0)] == [(2, 3), (5, 3)]
        batch = env.rollout(4, break_when_any_done=False)
        seen = [row["next", "observation"].shape[0] for row in batch[1].unbind(0)]
        assert seen == [6, 7, 6, 7]
        root = env.reset()
        root["_reset"] = torch.tensor([[True], [False]])
        step = env.rand_step(env.reset(env.rand_step(root)["next"].update(root.select("_reset"))))
        assert [row["next", "observation"].shape[0] for row in step.unbind(0)] == [3, 7]
        with pytest.raises(ValueError, match=r"'action': expected shape \(2, 2\)"):
            env.step(root.set("action", torch.zeros(2, 5, dtype=torch.bool)))
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_state_goes_through_to_the_workers_and_between_the_two_kinds(assert_same):
    with make(3, testing.EpisodeStepEnv, num_processes=2) as env:
        env.rollout(2, break_when_any_done=False)
        state = env.state_dict()
        with SerialEnv(3, testing.EpisodeStepEnv) as serial:
            serial.load_state_dict(state)
            assert_same(env.reset(), serial.reset())
        env.load_state_dict(state)
        assert env.reset()["observation"][:, 0].tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="3 environments: got 2"):
            env.load_state_dict({"is_started": True, "state": {"envs": state["state"]["envs"][:2]}})


def drawn(env):
    """What environments draw from torch at the beginnings of their trajectories."""
    return env.rollout(6, break_when_any_done=False)["drawn"].unbind(0)


@pytest.fixture
def drawing():
    def made():  # in here, since a new process may not be able to import this file
        primer = TensorDictPrimer(drawn=Unbounded((2,)), random=True)
        return TransformedEnv(testing.CountingEnv(2), primer)

    return made


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_environments_draw_from_torch_is_their_own_seeded_and_saved(method, drawing):
    with make(2, drawing, mp_start_method=method) as env:
        assert not torch.equal(*drawn(env))
        env.set_seed(3)
        first = drawn(env)
        assert not torch.equal(*first)
        state = env.state_dict()
        following = drawn(env)
        env.load_state_dict(state)
        assert all(map(torch.equal, drawn(env), following))
        env.set_seed(3)
        assert all(map(torch.equal, drawn(env), first))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_no_new_process_draws_the_numbers_of_an_older_one(method, drawing):
    torch.manual_seed(0)
    with make(2, drawing, mp_start_method=method) as env, make(1, drawing) as other:
        found = [*drawn(env), *drawn(other)]
        os.kill(env.pool.pids[0], signal.SIGKILL)
        env.restart()
        found += drawn(env)
        env.update_kwargs({})
        found += drawn(env)
    numbers = torch.cat([one[::2] for one in found])
    assert len(numbers.unique(dim=0)) == len(numbers) == 3 * 7  # beginnings of trajectories
    torch.manual_seed(0)
    with make(2, drawing, mp_start_method=method) as again:
        assert all(map(torch.equal, drawn(again), found))


def test_what_environments_draw_is_not_what_the_caller_draws_from_the_same_seed(drawing):
    with make(2, drawing) as env:
        env.set_seed(3)
        torch.manual_seed(3)
        primer = TensorDictPrimer(drawn=Unbounded((2,)), random=True)
        own = TransformedEnv(testing.CountingEnv(2), primer).reset()["drawn"]
        assert not (env.reset()["drawn"] == own).any()


def test_a_state_of_environments_that_were_seeded_alike_continues_alike(drawing):
    with make(3, drawing) as env:
        env.set_seed(3, static_seed=True)
        assert torch.equal(*drawn(env)[:2])
        state = env.state_dict()
        following = drawn(env)
        env.load_state_dict(state)
        assert all(map(torch.equal, drawn(env), following))


def test_a_state_of_fewer_processes_gives_each_its_own_numbers(drawing):
    with make(5, drawing, num_processes=2) as env, make(5, drawing, num_processes=4) as other:
        env.reset()
        state = env.state_dict()
        following = drawn(env)
        for _ in range(2):
            other.load_state_dict(state)
            rows = drawn(other)
            numbers = torch.cat(rows)[::2]
            assert len(numbers.unique(dim=0)) == len(numbers)
            assert torch.equal(rows[0][0], following[0][0])
        for one in state["state"]["envs"]:
            del one["random"]  # as it was saved before generators were
        other.load_state_dict(state)
        assert len(torch.cat(drawn(other))[::2].unique(dim=0)) == len(numbers)


def test_cartpole_goes_on_from_its_saved_state(assert_same):
    with make(2, cartpole) as env:
        env.set_seed(0)
        env.rollout(9, break_when_any_done=False)
        state = env.state_dict()
        torch.manual_seed(3)
        first = env.rollout(50, break_when_any_done=False)
        env.load_state_dict(state)
        torch.manual_seed(3)
        assert_same(env.rollout(50, break_when_any_done=False), first)


def test_rows_are_those_of_the_serial_environment():
    found = []
    for env in (SerialEnv(2, cartpole), make(2, cartpole)):
        with env:
            env.set_seed(3)
            root = {("observation",): np.zeros((2, 4), "float32")}
            after = {("observation",): np.zeros((2, 4), "float32"), ("done",): np.ones((2, 1), "?")}
            env.reset_into(root)
            env.step_into(root | {("action",): np.eye(2) > 0}, after)
            env.reset_into(root, np.array([[False], [True]]))
            found.append([*root.values(), *after.values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_environments_that_differ_are_refused():
    with pytest.raises(ValueError, match="worker 1 differs from worker 0 in observation_spec"):
        make(2, [testing.CountingEnv, testing.EpisodeStepEnv])


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one for each of 2 workers: got 3"):
        make(2, [testing.CountingEnv] * 3)
    with pytest.raises(ValueError, match="num_workers: expected at least 1, got 0"):
        make(0, testing.CountingEnv)
    with pytest.raises(ValueError, match="from 1 to num_workers, 2: got 3"):
        make(2, testing.CountingEnv, num_processes=3)
    with pytest.raises(TypeError, match="got CountingEnv"):
        make(1, testing.CountingEnv())


def test_a_wrong_action_and_a_missing_reset_are_named():
    with make(2, cartpole) as env:
        with pytest.raises(RuntimeError, match="not reset yet"):
            env.step(env.rand_action())
        root = env.reset()
        with pytest.raises(KeyError, match="'action' is missing"):
            env.step(root)
        with pytest.raises(ValueError, match=r"expected shape \(2, 2\), got \(2, 3\)"):
            env.step(root.set("action", torch.zeros(2, 3, dtype=torch.bool)))


def test_a_closed_environment_is_refused():
    env = make(2, cartpole)
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_transforms_around_a_replaced_process_start_anew():
    with transformed(make(2, cartpole)) as env:
        env.rollout(5, Memory(), break_when_any_done=False)
        os.kill(env.base_env.pool.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="env worker 1"):
            env.reset()
        assert env.base_env.restart() == [1]
        batch = env.rollout(5, Memory(), break_when_any_done=False)
        assert batch["is_init"][:, 0].all()
        assert (batch["hidden"][:, 0] == 0).all()


def test_a_worker_may_hold_a_parallel_environment(assert_same):
    def inner():
        return make(3, cartpole)

    with make(2, inner) as env, SerialEnv(2, lambda: SerialEnv(3, cartpole)) as serial:
        assert env.batch_size == (2, 3)
        batches = []
        for one in (env, serial):
            one.set_seed(0)
            torch.manual_seed(0)
            batches.append(one.rollout(40, break_when_any_done=False))
        assert_same(*batches)


def test_the_default_start_method_takes_a_lambda():
    with make(2, lambda: testing.CountingEnv(3), mp_start_method=None) as env:
        assert env.rollout(9)["next", "observation"].flatten().tolist() == [1, 2, 3, 1, 2, 3]
