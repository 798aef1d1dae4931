"""Collection in the background: stopped, asked, failed."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import Collector
from rl_envs.testing import CountingEnv, RaisingEnv
from rl_layout import check_layout


def test_collecting_in_the_background_stops_when_it_is_told(list_buffer):
    buffer = list_buffer()
    collector = Collector(CountingEnv(10**6), frames_per_batch=2, replay_buffer=buffer)
    collector.start()
    while len(buffer) < 3:
        pass
    collector.shutdown()
    count = len(buffer)
    assert not collector.is_running
    rows = torch.cat(list(buffer))
    assert rows["collector", "traj_step"].tolist() == list(range(2 * count))


def test_iteration_is_refused_during_background_collection(list_buffer):
    collector = Collector(CountingEnv(10**6), frames_per_batch=2, replay_buffer=list_buffer())
    collector.start()
    for call in (collector.next, lambda: next(iter(collector))):
        with pytest.raises(RuntimeError, match="runs in the background"):
            call()
    with pytest.raises(RuntimeError, match="already"):
        collector.start()
    collector.shutdown()


class Twice(nn.Module):
    """Reads its weight twice in a step, and writes down both."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.tensor([True, False]), self.weight.clone(), self.weight.clone()


def test_calls_during_background_collection_run_between_two_batches(list_buffer):
    acting = TensorDictModule(Twice(), ["observation"], ["action", "first", "second"])
    buffer = list_buffer()
    options = {"frames_per_batch": 5, "replay_buffer": buffer}
    collector = Collector(CountingEnv(10**6), acting, **options)
    collector.start()
    for number in range(1, 30):
        before = len(buffer)
        collector.update_policy_weights_({"module.weight": torch.full((1,), float(number))})
        while len(buffer) < before + 2:
            pass
        if number % 10 == 0:
            collector.reset()
        assert collector.stats()["frames"] % 5 == 0
        assert collector.state_dict()["batches"]["frames"] % 5 == 0
    collector.shutdown()
    rows = torch.cat(list(buffer))
    versions = rows["collector", "policy_version"].unsqueeze(-1).float()
    assert torch.equal(rows["first"], versions)
    assert torch.equal(rows["second"], versions)
    assert set(versions.flatten().tolist()) == set(map(float, range(30)))
    assert len(rows["collector", "traj_ids"].unique()) == 3
    assert not check_layout(rows).errors


def test_calls_after_background_collection_run_in_the_caller(list_buffer):
    options = {"frames_per_batch": 2, "total_frames": 4, "replay_buffer": list_buffer()}
    collector = Collector(CountingEnv(), **options)
    collector.start()
    while collector.is_running:
        pass
    assert collector.stats()["frames"] == 4
    collector.wait()
    assert collector.next() is None


def test_an_error_in_the_background_reaches_the_caller(list_buffer):
    collector = Collector(RaisingEnv(at_step=3), frames_per_batch=2, replay_buffer=list_buffer())
    collector.start()
    with pytest.raises(ZeroDivisionError, match="always fails"):
        collector.wait()
    assert collector.stats()["frames"] == 2
    collector.start()  # the environment is reset, and fails again
    with pytest.raises(ZeroDivisionError, match="always fails"):
        collector.wait()
