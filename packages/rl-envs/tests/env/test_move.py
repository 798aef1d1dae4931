"""Environments on other devices, and the policy that each of them is."""

import pytest
import torch

from rl_envs import GymEnv, ParallelEnv, Pendulums, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_transforms import RewardScaling, StepCounter

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Tensors(CountingEnv):
    """Counts on any device; meta tensors stand in for those of another device."""

    def _to(self, device):
        self._count = self._count.to(device)


@pytest.mark.parametrize(
    "make",
    [
        Tensors,
        lambda: SerialEnv(2, Tensors),
        lambda: TransformedEnv(Tensors(), RewardScaling(0.0, 2.0), StepCounter()),
        lambda: TransformedEnv(SerialEnv(2, Tensors), StepCounter()),
        lambda: GymEnv("CartPole-v1"),
    ],
    ids=["alone", "serial", "transformed", "transformed serial", "gym"],
)
def test_an_environment_moves_with_its_specs_and_is_reset_first(make):
    env = make()
    root = env.reset()
    assert env.to("meta") is env
    assert env.device == torch.device("meta")
    leaves = env.fake_tensordict().flatten_keys().values()
    assert {leaf.device.type for leaf in leaves} == {"meta"}
    with pytest.raises(RuntimeError, match="was not reset yet"):
        env.step(root)


def test_rows_of_numpy_end_where_an_environment_leaves_the_cpu():
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    assert env.native_rows
    assert not env.to("meta").native_rows


def test_an_environment_stays_where_it_is_already():
    env = CountingEnv()
    env.reset()
    assert env.to(torch.device("cpu")) is env
    env.rand_step(env.reset())


def test_an_environment_that_cannot_be_moved_says_what_can():
    with pytest.raises(NotImplementedError, match=r"lives on cpu and cannot be moved to meta.*Dev"):
        CountingEnv().to("meta")
    with (
        ParallelEnv(2, Tensors, mp_start_method="fork") as env,
        pytest.raises(NotImplementedError, match="where its processes make it"),
    ):
        env.to("meta")


@pytest.mark.parametrize("device", ["nowhere", "cuda:77", None, 3.5])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(RuntimeError, match="expected a device of this machine"):
        CountingEnv().to(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_pendulums_move_to_a_gpu_and_back():
    env = Pendulums(3).to("cuda")
    assert env.rollout(5)["next", "reward"].device.type == "cuda"
    assert env.to("cpu").rollout(5).shape == (3, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CountingEnv(9),
        lambda: GymEnv("CartPole-v1"),
        lambda: TransformedEnv(SerialEnv(2, lambda: CountingEnv(9)), StepCounter()),
        lambda: Pendulums(3),
    ],
    ids=["alone", "gym", "transformed", "tensors"],
)
def test_rand_step_is_a_policy_of_random_actions(make):
    batches = []
    env = make()
    for policy in (None, env.rand_step):
        env.set_seed(0)
        torch.manual_seed(0)
        batches.append(env.rollout(5, policy))
    assert (batches[0] == batches[1]).all()
