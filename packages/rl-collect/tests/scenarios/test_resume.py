"""A saved collector continues in another process, bit for bit, with the weights that it had.

`python test_resume.py FOLDER` is that process: it makes a collector of each kind with
other weights, loads its state and saves the batches that follow.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector, MultiSyncCollector
from rl_envs import GymEnv, SerialEnv
from rl_tensordict import leaves


def cart_pole():
    return GymEnv("CartPole-v1")


def two_poles():
    return SerialEnv(2, cart_pole)


def policy():
    """A policy with weights, which draws its actions."""
    layer = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
    draw = TensorDictModule(
        lambda logits: nn.functional.one_hot(logits.softmax(-1).multinomial(1)[..., 0], 2) > 0,
        ["logits"],
        ["action"],
    )
    return TensorDictSequential(layer, draw)


KINDS = {
    "single": lambda: Collector(two_poles(), policy(), frames_per_batch=24),
    "together": lambda: MultiSyncCollector(
        [two_poles, two_poles], policy(), frames_per_batch=24, mp_start_method="fork"
    ),
    "together, whole trajectories": lambda: MultiSyncCollector(
        [two_poles, two_poles],
        policy(),
        frames_per_batch=24,
        trajs_per_batch=2,
        mp_start_method="fork",
    ),
    "together, policy made there": lambda: MultiSyncCollector(
        [cart_pole, cart_pole],
        policy_factory=policy,
        frames_per_batch=24,
        mp_start_method="fork",
    ),
}


def batches_of(collector, count=3):
    return [collector.next().to_dict() for _ in range(count)]


def train(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn(parameter.shape)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """What each kind plays after its save, here and in another process."""
    folder, here = tmp_path_factory.mktemp("states"), {}
    for number, make in enumerate(KINDS.values()):
        torch.manual_seed(number)
        with make() as collector:
            collector.set_seed(5)
            for _ in range(2):  # the usual order: collect, train, publish, save
                collector.next()
                learner = policy() if collector.policy is None else collector.policy
                train(learner)
                collector.update_policy_weights_(learner)
            torch.save(collector.state_dict(), folder / f"state{number}")
            here[number] = batches_of(collector)
    subprocess.run([sys.executable, __file__, folder], check=True, timeout=300)
    kinds = enumerate(KINDS)
    return {
        kind: (here[number], torch.load(folder / f"batches{number}", weights_only=True))
        for number, kind in kinds
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_collector_that_was_trained_and_saved_goes_on_in_another_process(kind, resumed):
    for one, other in zip(*resumed[kind], strict=True):
        ours, theirs = dict(leaves(TensorDict(one))), dict(leaves(TensorDict(other)))
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
        assert ours["collector", "policy_version"].max() == 2


def test_weights_that_were_published_behind_the_last_batch_are_saved():
    learner = policy()
    options = {"frames_per_batch": 8, "mp_start_method": "fork"}
    with MultiSyncCollector([cart_pole, cart_pole], learner, **options) as collector:
        collector.next()
        train(learner)
        collector.update_policy_weights_()
        trained = {name: leaf.clone() for name, leaf in learner.state_dict().items()}
        state = collector.state_dict()
        train(learner)
        collector.load_state_dict(state)
        assert all(torch.equal(leaf, learner.state_dict()[name]) for name, leaf in trained.items())
        assert collector.policy_version == 1
        assert collector.next()["collector", "policy_version"].unique().tolist() == [1]


def test_complete_trajectories_of_a_restored_collector_name_their_dimension():
    def make():
        return Collector(two_poles(), None, frames_per_batch=300, trajs_per_batch=1)

    one, other = make(), make()
    one.next()  # more are held than were returned
    other.load_state_dict(one.state_dict())
    expected, found = one.next(), other.next()
    assert found.names == expected.names == ["time"]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.manual_seed(99)
    for number, make in enumerate(KINDS.values()):
        with make() as collector:
            state = torch.load(folder / f"state{number}", weights_only=True)
            collector.load_state_dict(state)
            torch.save(batches_of(collector), folder / f"batches{number}")
