"""Collectors that are saved and loaded."""

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs.testing import CountingEnv


def weighted():
    """A policy with weights, which draws its actions."""
    layer = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
    draw = TensorDictModule(
        lambda logits: nn.functional.one_hot(logits.softmax(-1).multinomial(1)[..., 0], 2) > 0,
        ["logits"],
        ["action"],
    )
    return TensorDictSequential(layer, draw)


@pytest.mark.parametrize("trajs_per_batch", [None, 2])
def test_a_saved_collector_goes_on_bit_for_bit(trajs_per_batch, cart_poles, sampled):
    options = {"frames_per_batch": 30, "trajs_per_batch": trajs_per_batch}
    torch.manual_seed(3)
    collector = Collector(cart_poles(), sampled, **options)
    collector.set_seed(0)
    for _ in range(3):
        collector.next()
    state = collector.state_dict()
    expected = [collector.next() for _ in range(3)]
    other = Collector(cart_poles(), sampled, **options)
    torch.manual_seed(99)
    other.load_state_dict(state)
    for batch in expected:
        assert (other.next() == batch).all()
    assert other.frames == collector.frames
    assert other.stats()["episodes"] == collector.stats()["episodes"]


@pytest.mark.parametrize("part", ["env", "policy", "batches", "random"])
def test_a_state_that_does_not_fit_changes_nothing(part, cart_poles):
    options = {"frames_per_batch": 6}
    torch.manual_seed(3)
    saved = Collector(cart_poles(), weighted(), **options)
    saved.next()
    state = saved.state_dict()
    state[part] = dict(list(state[part].items())[1:]) if isinstance(state[part], dict) else None
    collector = Collector(cart_poles(), weighted(), **options)
    collector.set_seed(0)
    collector.next()
    before = collector.state_dict()
    expected = collector.next()
    collector.load_state_dict(before)
    with pytest.raises((KeyError, RuntimeError, ValueError, TypeError)):
        collector.load_state_dict(state)
    assert (collector.next() == expected).all()
    assert collector.frames == 12


def test_a_saved_collector_can_be_written_without_code(tmp_path, memory_policy):
    collector = Collector(CountingEnv(max_steps=5), memory_policy(), frames_per_batch=3)
    collector.next()
    torch.save(collector.state_dict(), tmp_path / "state")
    other = Collector(CountingEnv(max_steps=5), memory_policy(), frames_per_batch=3)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert other.next()["observation"].flatten().tolist() == [3, 4, 0]
