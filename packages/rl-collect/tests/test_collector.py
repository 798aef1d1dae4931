"""The collector in one process: what it plays, marks, returns, stores, saves and refuses."""

import warnings

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector, SyncDataCollector
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import CountingEnv, GroupsEnv
from rl_layout import check_layout


def test_every_batch_obeys_the_layout_and_follows_the_one_before(cart_poles, collected, sampled):
    batches = collected(cart_poles(), sampled, frames_per_batch=60, total_frames=300)
    whole = torch.cat(batches, -1)
    assert whole.shape == (3, 100)
    assert whole.names == [None, "time"]
    assert not check_layout(whole).findings
    over = whole["next", "done"][:, :-1]
    assert (whole["is_init"][:, 1:] == over).all()
    same = (whole["next", "observation"][:, :-1] == whole["observation"][:, 1:]).all(-1)
    assert (same | over.squeeze(-1)).all()
    assert (whole["collector", "traj_ids"] >> 32 == 7).all()


def test_frames_are_rounded_up_with_one_warning(cart_poles):
    with pytest.warns(UserWarning, match="no multiple of 3") as found:
        collector = Collector(cart_poles(), frames_per_batch=10, total_frames=20)
    batches = list(collector)
    assert len(found) == 1
    assert [batch.shape for batch in batches] == [(3, 4), (3, 4)]
    assert (len(collector), collector.frames) == (2, 24)


def test_a_second_iterator_goes_on_where_the_first_stopped():
    collector = Collector(CountingEnv(max_steps=9), frames_per_batch=4, total_frames=12)
    first = next(iter(collector))
    rest = list(collector)
    assert first["observation"].flatten().tolist() == [0, 1, 2, 3]
    assert torch.cat(rest)["observation"].flatten().tolist() == [4, 5, 6, 7, 8, 0, 1, 2]
    assert collector.next() is None


def test_a_collector_without_an_end_has_no_length():
    collector = Collector(CountingEnv(), frames_per_batch=4)
    with pytest.raises(TypeError, match="no end"):
        len(collector)


def test_a_terminated_last_step_stays_a_termination(collected):
    batches = collected(CountingEnv(3), frames_per_batch=3, total_frames=3, set_truncated=True)
    assert batches[0]["next", "terminated"][-1].item()
    assert not batches[0]["next", "truncated"].any()


def test_environments_can_be_reset_before_each_batch(collected):
    env = CountingEnv(max_steps=9)
    batches = collected(env, frames_per_batch=3, total_frames=9, reset_at_each_iter=True)
    whole = torch.cat(batches)
    assert whole["observation"].flatten().tolist() == [0, 1, 2] * 3
    assert whole["is_init"].flatten().tolist() == [True, False, False] * 3
    assert len(whole["collector", "traj_ids"].unique()) == 3
    assert not whole["next", "done"].any()


def test_the_state_of_a_policy_is_carried_from_batch_to_batch(memory_policy, collected):
    envs = SerialEnv(2, [lambda: CountingEnv(max_steps=4), lambda: CountingEnv(max_steps=6)])
    whole = torch.cat(collected(envs, memory_policy(), frames_per_batch=6, total_frames=24), -1)
    assert whole["hidden"][..., 0].tolist() == [
        [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
    ]
    assert (whole["next", "hidden"] == whole["hidden"] + 1).all()


def test_a_buffer_gets_batches_and_the_caller_none(list_buffer, cart_poles):
    buffer = list_buffer()
    options = {"frames_per_batch": 6, "total_frames": 12, "replay_buffer": buffer}
    assert list(Collector(cart_poles(2), **options)) == [None, None]
    assert [batch.shape for batch in buffer] == [(2, 3), (2, 3)]


def test_steps_can_be_written_one_by_one(list_buffer):
    buffer = list_buffer()
    options = {"frames_per_batch": 4, "total_frames": 8, "replay_buffer": buffer}
    list(Collector(CountingEnv(max_steps=3), extend_buffer=False, **options))
    rows = torch.stack(list(buffer))
    assert rows["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert rows["collector", "traj_step"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [step.shape for step in buffer] == [()] * 8


def test_next_observations_can_be_left_out(memory_policy, collected):
    env = SerialEnv(2, [CountingEnv] * 2)
    full = collected(env, memory_policy(), frames_per_batch=8, total_frames=8)[0]
    env = SerialEnv(2, [CountingEnv] * 2)
    options = {"frames_per_batch": 8, "total_frames": 8, "compact_obs": True}
    batch = collected(env, memory_policy(), **options)[0]
    gone = full.exclude(("next", "observation"), ("next", "hidden"), ("next", "is_init"))
    assert set(batch.keys(True, True)) == set(gone.keys(True, True))


def test_hooks_see_what_is_handed_out_and_their_errors_come_through(collected):
    seen = []
    batches = collected(
        CountingEnv(max_steps=9),
        frames_per_batch=3,
        total_frames=6,
        pre_collect_hook=lambda: seen.append("before"),
        post_collect_hook=lambda batch: seen.append(batch["twice"].sum().item()),
        postproc=lambda batch: batch.set("twice", batch["observation"] * 2),
    )
    assert seen == ["before", 6, "before", 24]
    assert batches[1]["twice"].flatten().tolist() == [6, 8, 10]

    def fails():
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        collected(CountingEnv(), frames_per_batch=3, total_frames=3, pre_collect_hook=fails)


def test_ids_can_be_left_out(collected):
    batch = collected(CountingEnv(), frames_per_batch=2, total_frames=2, track_traj_ids=False)[0]
    assert ("collector", "traj_ids") not in batch.keys(True)
    assert batch["is_init"].flatten().tolist() == [True, False]


def test_the_caller_may_change_a_batch(memory_policy):
    collector = Collector(CountingEnv(max_steps=9), memory_policy(), frames_per_batch=3)
    collector.next().zero_()
    assert collector.next()["hidden"].flatten().tolist() == [3, 4, 5]


def test_the_name_of_the_seeds_is_an_alias():
    assert SyncDataCollector is Collector


def test_the_repr_says_how_far_it_is():
    collector = Collector(CountingEnv(), frames_per_batch=4)
    collector.next()
    assert "4 frames a batch, 4 of any number played" in repr(collector)


def test_nothing_warns_without_a_reason(cart_poles, collected, sampled):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collected(cart_poles(), sampled, frames_per_batch=30, total_frames=60)


class TwoRewards(GroupsEnv):
    """Groups that gain the number of their step, the second a hundred times as much."""

    def _step(self, tensordict):
        after = super()._step(tensordict)
        for name, scale in (("first", 1.0), ("second", 100.0)):
            after.set((name, "reward"), scale * after[name, "observation"])
        return after


def test_the_returns_of_several_rewards_are_those_of_their_own_steps():
    env = TwoRewards({"first": 2, "second": 2})
    collector = Collector(env, frames_per_batch=5)
    batch = collector.next()
    assert collector.stats()["episodes"] == 2
    assert collector.stats()["mean_length"] == 2
    assert collector.stats()["mean_return"] == 303
    episodes = collector.state_dict()["batches"]["episodes"]
    assert [one for one, _ in episodes["recent"]] == [303, 303]
    assert episodes["return"].tolist() == [101]  # of the step that a next batch continues
    assert batch["next", "second", "reward"].flatten().tolist() == [100, 200, 100, 200, 100]


IN_PLACE = "steps: in place: the environment writes its rows into the columns of the batch"


@pytest.mark.parametrize(
    ("make", "policy", "expected"),
    [
        (lambda: GymEnv("CartPole-v1"), None, [IN_PLACE, "policy: none, actions are drawn"]),
        (
            lambda: SerialEnv(2, lambda: GymEnv("Pendulum-v1")),
            lambda: TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"]),
            [IN_PLACE, "policy: flattened into 1 calls on tensors"],
        ),
        (
            lambda: GymEnv("Pendulum-v1"),
            lambda: lambda root: root.set("action", root["observation"][:1]),
            [IN_PLACE, "policy: called through tensordicts: "],
        ),
        (
            CountingEnv,
            None,
            ["steps: through tensordicts: CountingEnv writes no rows itself", "policy: none"],
        ),
    ],
    ids=["random", "module", "callable", "tensordicts"],
)
def test_a_collector_explains_how_steps_are_taken_and_the_policy_is_called(make, policy, expected):
    collector = Collector(make(), policy and policy(), frames_per_batch=4)
    for _ in range(2):
        for line, start in zip(collector.explain().splitlines(), expected, strict=True):
            assert line.startswith(start), line
        collector.next()
