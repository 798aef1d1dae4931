"""New weights of policies in workers."""

import multiprocessing
import os

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import MultiAsyncCollector, MultiSyncCollector
from rl_envs.testing import CountingEnv

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def test_new_weights_reach_all_workers_and_rows_say_which_acted(carrier, counting, policy):
    acting = policy()
    options = {"frames_per_batch": 4}
    with carrier.sync([counting(99)] * 2, acting, **options) as collector:
        first = collector.next()
        with torch.no_grad():
            acting.module.weight.fill_(3)
        second = collector.next()
        collector.update_policy_weights_()
        third = collector.next()
        collector.update_policy_weights_({"module.weight": torch.full((1,), 5.0)})
        fourth = collector.next()
    for batch, weight, version in zip(
        (first, second, third, fourth), (0, 0, 3, 5), (0, 0, 1, 2), strict=True
    ):
        assert (batch["weight"] == weight).all()
        assert (batch["collector", "policy_version"] == version).all()


WRONG_WEIGHTS = [
    (
        "other",
        torch.ones(1),
        r"\['other'\] are none of its weights; 'module\.weight': expected float32 .*nothing",
    ),
    ("module.weight", torch.ones(2), r"'module\.weight': expected .* \[1\], got float32 \[2\]"),
    ("module.weight", torch.ones(1, dtype=torch.complex64), r"expected .*, got complex64 \[1\]"),
    ("module.weight", "text", r"expected float32 \[1\], got a str"),
]


def test_wrong_weights_are_refused(policy):
    with MultiSyncCollector([CountingEnv], policy(), frames_per_batch=2, **FORK) as collector:
        for name, weights, message in WRONG_WEIGHTS:
            with pytest.raises(ValueError, match=message):
                collector.update_policy_weights_({name: weights})
        collector.update_policy_weights_({"module.weight": torch.ones(1, dtype=torch.float64)})
        assert (collector.next()["weight"] == 1).all()
    collector = MultiSyncCollector([CountingEnv], frames_per_batch=2, **FORK)
    with collector, pytest.raises(TypeError, match="no weights"):
        collector.update_policy_weights_()


def test_versions_go_on_after_a_load(carrier, policy):
    options = {"frames_per_batch": 2}
    with carrier.sync([CountingEnv], policy(), **options) as collector:
        for _ in range(3):
            collector.update_policy_weights_()
        collector.next()
        state = collector.state_dict()
    with carrier.sync([CountingEnv], policy(), **options) as other:
        other.load_state_dict(state)
        other.update_policy_weights_({"module.weight": torch.full((1,), 7.0)})
        batch = other.next()
    assert (batch["collector", "policy_version"] == 4).all()
    assert (batch["weight"] == 7).all()


def test_weights_may_change_while_workers_play(carrier, counting, policy):
    acting, options = policy(), {"frames_per_batch": 8, "total_frames": 400}
    seen = []
    with carrier.one_by_one([counting(9)] * 2, acting, **options) as collector:
        for number, batch in enumerate(collector, 1):
            with torch.no_grad():
                acting.module.weight.fill_(number)
            versions = batch["collector", "policy_version"]
            assert (batch["weight"] == versions.unsqueeze(-1)).all()  # never torn, never mixed
            seen += versions.unique().tolist()
            collector.update_policy_weights_()
        assert collector.stats()["policy_lag"] > 0
    assert len(set(seen)) > 5


def test_progress_says_how_far_the_weights_are_behind(capsys, counting, policy):
    options = {"frames_per_batch": 8, "total_frames": 32, "progress": True}
    with MultiAsyncCollector([counting(3)] * 2, policy(), **options, **FORK) as collector:
        for _ in collector:
            collector.update_policy_weights_()
            collector.update_policy_weights_()
    told = capsys.readouterr().err
    assert "episodes=" in told
    assert "return=3.0" in told
    assert "lag=" in told


def test_policies_that_workers_make_begin_alike_and_take_new_weights(
    carrier, weighted_network, counting
):
    class Begins(weighted_network):
        def __init__(self):
            super().__init__()
            with torch.no_grad():
                self.weight.fill_(float(os.getpid()))

    def make():
        return TensorDictModule(Begins(), ["observation"], ["action", "weight"])

    options = {"frames_per_batch": 4, "policy_factory": make}
    with carrier.sync([counting(9)] * 2, **options) as collector:
        pid = collector.pids[0]
        assert (collector.next()["weight"] == pid).all()
        collector.update_policy_weights_({"module.weight": torch.full((1,), 3.0)})
        batch = collector.next()
        assert (batch["weight"] == 3).all()
        assert (batch["collector", "policy_version"] == 1).all()
        state = collector.state_dict()
    with carrier.sync([counting(9)] * 2, **options) as other:
        other.load_state_dict(state)
        batch = other.next()
        assert (batch["weight"] == 3).all()
        assert (batch["collector", "policy_version"] == 1).all()


def test_weights_of_policies_that_workers_make_must_be_passed(weighted_network, counting):
    def make():
        return TensorDictModule(weighted_network(), ["observation"], ["action", "weight"])

    options = {"frames_per_batch": 4, **FORK}
    with MultiSyncCollector([counting(9)] * 2, policy_factory=make, **options) as collector:
        with pytest.raises(TypeError, match=r"policy_factory made.*pass the policy"):
            collector.update_policy_weights_()
        assert collector.policy_version == 0
        collector.update_policy_weights_(make())
        assert collector.policy_version == 1
    with (
        MultiSyncCollector([counting(9)] * 2, **options) as collector,
        pytest.raises(TypeError, match="drawn at random"),
    ):
        collector.update_policy_weights_()


def test_worker_waiting_in_a_hook_acts_with_weights_that_arrive_meanwhile(
    list_buffer, counting, policy
):
    made = multiprocessing.get_context("fork")
    waits, goes_on = made.Event(), made.Event()

    def hook():
        waits.set()
        goes_on.wait()

    acting, batches = policy(), list_buffer()
    options = {"frames_per_batch": 4, "total_frames": 4, "replay_buffer": batches}
    with MultiAsyncCollector(
        [counting(9)], acting, pre_collect_hook=hook, **options, **FORK
    ) as collector:
        collector.start()
        assert waits.wait(60)
        with torch.no_grad():
            acting.module.weight.fill_(1)
        collector.update_policy_weights_()
        goes_on.set()
        collector.wait()
    assert (batches[0]["collector", "policy_version"] == 1).all()
    assert (batches[0]["weight"] == 1).all()


def test_a_policy_compiled_in_place_that_would_be_pickled_is_refused_by_name(policy):
    policy = TensorDictModule(nn.Linear(1, 2), ["observation"], ["action"])
    policy.compile(backend="eager")
    with pytest.raises(TypeError, match=r"a TensorDictModule, cannot be pickled .* in place"):
        MultiSyncCollector([CountingEnv], policy, frames_per_batch=4, mp_start_method="spawn")


class Signed(nn.Module):
    """Takes an action by the sign of one weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, observation):
        first = (self.weight > 0).expand(observation.shape)
        return torch.cat([first, ~first], -1)


def test_a_compiled_policy_acts_in_workers_and_takes_new_weights():
    plain = Signed()
    module = TensorDictModule(plain, ["observation"], ["action"])
    with MultiSyncCollector(
        [CountingEnv],
        torch.compile(module, backend="eager"),
        frames_per_batch=4,
        mp_start_method="fork",
    ) as collector:
        for version, weight in enumerate((-1.0, 1.0), start=1):
            nn.init.constant_(plain.weight, weight)
            collector.update_policy_weights_()
            batch = collector.next()
            assert batch["action"][..., 0].eq(weight > 0).all()
            assert batch["collector", "policy_version"].eq(version).all()
