"""From environments to gradients with parts on a CUDA device: the numbers of the CPU."""

# ruff: noqa: D103 - the name of a test is its promise

import copy

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl_collect import Collector
from rl_envs import GymEnv
from rl_layout import check_layout
from rl_layout.synthetic import trajectories
from rl_policies import MLP, Ensemble, QValueActor, ValueOperator
from rl_recurrent import GRUModule
from rl_replay import (
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    PrioritizedSliceSampler,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rl_value import GAE, DQNLoss, SoftUpdate

pytestmark = pytest.mark.gpu
LENGTHS = [5, 9, 1, 7, 3, 12, 2, 9]


def agent():
    """A recurrent network of action values; the same weights each time."""
    torch.manual_seed(1)
    memory = GRUModule(
        input_size=2, hidden_size=8, in_keys=["observation", "hidden"], out_keys=["seen", "hidden"]
    )
    values = QValueActor(MLP(8, 3, num_cells=[16]), in_keys=["seen"], action_space="categorical")
    return TensorDictSequential(memory, values)


def stored(device, **settings):
    """A buffer with trajectories of known rows."""
    torch.manual_seed(2)
    batch = trajectories(LENGTHS)
    batch["action"] = torch.randint(3, (len(batch),))
    batch["next", "reward"] = torch.randn(len(batch), 1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(64, device=device),
        generator=torch.Generator().manual_seed(3),
        **settings,
    )
    buffer.extend(batch)
    return buffer


def close(found, expected):
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=2e-4, atol=2e-5)  # tf32 is off


SAMPLERS = {
    "uniform": lambda: None,
    "slices": lambda: SliceSampler(slice_len=4, strict_length=False),
}


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_from_a_buffer_on_the_device_are_those_of_the_cpu(device, sampler):
    one, two = (stored(d, sampler=SAMPLERS[sampler](), batch_size=12) for d in ("cpu", device))
    for _ in range(5):
        expected, found = one.sample(), two.sample()
        assert found["observation"].device.type == "cuda"
        assert (found.cpu() == expected).all()
        assert not check_layout(found).errors or sampler == "uniform"


def test_priorities_are_written_back_from_the_device():
    def made(device):
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.7, beta=0.5, storage=LazyTensorStorage(64, device=device), batch_size=16,
            generator=torch.Generator().manual_seed(3),
        )  # fmt: skip
        torch.manual_seed(2)
        buffer.extend(trajectories(LENGTHS))
        return buffer

    one, two = made("cpu"), made("cuda")
    for number in range(8):
        expected, found = one.sample(), two.sample()
        assert found["observation"].device.type == "cuda"
        assert torch.equal(found["index"].cpu(), expected["index"])
        close(found["priority_weight"], expected["priority_weight"])
        error = (expected["index"] % 5 + number).float() + 0.1
        expected["td_error"], found["td_error"] = error, error.cuda()
        one.update_tensordict_priority(expected)
        two.update_tensordict_priority(found)


def test_slices_by_priority_stay_whole_on_the_device():
    sampler = PrioritizedSliceSampler(64, 0.7, 0.5, slice_len=4, strict_length=False)
    buffer = stored("cuda", sampler=sampler, batch_size=16)
    for _ in range(5):
        found = buffer.sample()
        assert not check_layout(found).errors
        buffer.update_priority(found["index"], torch.rand(len(found), device="cuda"))


def test_plain_buffer_takes_priorities_of_the_device():
    buffer = PrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=LazyTensorStorage(64, device="cuda"), batch_size=8
    )
    index = buffer.extend(trajectories(LENGTHS))
    buffer.update_priority(index.cuda(), torch.rand(len(index), device="cuda"))
    assert buffer.sample()["observation"].is_cuda


@pytest.mark.parametrize("form", ["flat", "grid"])
def test_a_recurrent_loss_and_its_gradients_are_those_of_the_cpu(form):
    torch.manual_seed(2)
    batch = trajectories(LENGTHS)
    if form == "grid":
        batch = batch[:48].reshape(4, 12)
    batch["action"] = torch.randint(3, batch.batch_size)
    batch["next", "reward"] = torch.randn(*batch.batch_size, 1)
    batch["hidden"] = torch.zeros(*batch.batch_size, 1, 8)
    batch["next", "hidden"] = torch.zeros(*batch.batch_size, 1, 8)
    found = {}
    for device in ("cpu", "cuda"):
        loss = DQNLoss(agent(), action_space="categorical", delay_value=True).to(device)
        given = batch.to(device)
        value = loss(given)["loss"]
        value.backward()
        SoftUpdate(loss, tau=0.1).step()
        slopes = [p.grad for p in loss.parameters() if p.grad is not None]
        found[device] = [value.detach(), given["td_error"], *slopes]
    assert found["cuda"][0].is_cuda
    for ours, expected in zip(found["cuda"], found["cpu"], strict=True):
        close(ours, expected)


def test_advantages_are_those_of_the_cpu():
    torch.manual_seed(2)
    batch = trajectories(LENGTHS)
    critic = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=critic)(batch.clone())
    critic = copy.deepcopy(critic).cuda()
    found = GAE(gamma=0.9, lmbda=0.8, value_network=critic)(batch.cuda())
    for key in ("advantage", "value_target", "state_value"):
        assert found[key].is_cuda
        close(found[key], expected[key])


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # the CPU has no such products
@pytest.mark.parametrize("compiled", [False, True])
def test_an_ensemble_is_its_members(compiled):
    torch.manual_seed(2)
    members = [MLP(4, 1, num_cells=[32, 32]) for _ in range(3)]
    critics = Ensemble(members).cuda()
    call = torch.compile(critics) if compiled else critics
    inputs = torch.randn(17, 4)
    close(call(inputs.cuda()), torch.stack([member(inputs) for member in members], 1))


def test_critics_of_an_ensemble_run_on_the_device():
    value = ValueOperator(MLP(2, 1, num_cells=[8]), ["observation"]).ensemble(5).cuda()
    found = value(trajectories([3]).cuda())
    assert found["state_value"].shape == (3, 5, 1)
    assert found["state_value"].is_cuda


@pytest.mark.parametrize("buffer_device", ["cpu", "cuda"])
def test_a_policy_on_the_device_plays_an_environment_on_the_cpu(buffer_device):
    net = TensorDictModule(MLP(4, 2, num_cells=[16]), ["observation"], ["action_value"])
    policy = TensorDictSequential(
        net, TensorDictModule(lambda v: torch.nn.functional.one_hot(v.argmax(-1), 2).bool(),
                              ["action_value"], ["action"]),
    ).cuda()  # fmt: skip
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(500, device=buffer_device), batch_size=16
    )
    collector = Collector(
        GymEnv("CartPole-v1"), policy, frames_per_batch=40, total_frames=200,
        policy_device="cuda", env_device="cpu", replay_buffer=buffer,
    )  # fmt: skip
    list(collector)
    rows = buffer[:]
    assert len(rows) == 200
    assert rows["observation"].device.type == buffer_device
    assert not check_layout(rows).errors
