"""Devices: what is filled in, what is refused, and what moves."""

import functools

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector, MultiAsyncCollector, MultiSyncCollector
from rl_collect.inputs.devices import CrossDevicePolicy, Devices, mover, synchroniser
from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import CountingEnv
from rl_layout import check_layout
from rl_replay import LazyTensorStorage, ReplayBuffer

CPU = torch.device("cpu")


def test_devices_default_to_those_of_environment_and_policy():
    devices = Devices.of(CPU, nn.Linear(2, 2, device="meta"))
    assert (devices.env, devices.policy, devices.storing) == (CPU, torch.device("meta"), CPU)
    assert Devices.of(CPU, device="cpu", storing_device="meta").storing.type == "meta"
    devices = Devices.of(CPU, nn.Linear(2, 2, device="meta"), device="meta")
    assert (devices.env, devices.policy.type, devices.storing.type) == (CPU, "meta", "meta")


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(RuntimeError, match="no device 'cuda:99'"):
        Devices.of(CPU, storing_device="cuda:99")
    with pytest.raises(RuntimeError, match="no device 'cuda:99'"):
        Collector(CountingEnv(), nn.Linear(1, 2), frames_per_batch=2, policy_device="cuda:99")
    with pytest.raises(ValueError, match=r"environment is on cpu.* make it with device='meta'"):
        Devices.of(CPU, env_device="meta")
    with pytest.raises(ValueError, match=r"policy is on cpu.* policy\.to\('meta'\)"):
        Devices.of(CPU, nn.Linear(2, 2), device="meta")


@pytest.mark.parametrize("option", ["policy_device", "device"])
def test_a_copy_of_a_module_acts_where_the_policy_is_wanted(option):
    learner = nn.Linear(1, 2)
    collector = Collector(CountingEnv(), learner, frames_per_batch=2, **{option: "meta"})
    assert learner.weight.device.type == "cpu"
    assert {one.device.type for one in collector.policy.parameters()} == {"meta"}
    assert collector.devices.policy.type == "meta"
    with pytest.warns(UserWarning, match="copying from a non-meta parameter"):
        collector.update_policy_weights_()  # those of the learner
    assert collector.policy_version == 1


def test_a_policy_that_is_there_already_acts_itself():
    learner = nn.Linear(1, 2)
    collector = Collector(CountingEnv(), learner, frames_per_batch=2, policy_device="cpu")
    assert collector.policy.module is learner


def test_a_policy_that_cannot_be_copied_is_refused_by_name():
    learner = nn.Linear(1, 2, device="meta")
    with pytest.raises(ValueError, match=r"policy is on meta, and a copy on cpu could not be made"):
        Collector(CountingEnv(), learner, frames_per_batch=2, policy_device="cpu")


def test_an_environment_is_moved_where_it_can_be():
    env = GymEnv("CartPole-v1")
    Collector(env, frames_per_batch=2, env_device="meta", storing_device="cpu")
    assert env.device.type == "meta"
    with pytest.raises(NotImplementedError, match="CountingEnv lives on cpu and cannot be moved"):
        Collector(CountingEnv(), frames_per_batch=2, env_device="meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_copy_takes_the_weights_of_the_learner_when_it_is_told_to():
    learner = nn.Linear(4, 2)
    policy = TensorDictModule(learner, ["observation"], ["logits"])
    acting = TensorDictSequential(
        policy, TensorDictModule(lambda x: x == x.max(-1, True)[0], ["logits"], ["action"])
    )
    collector = Collector(GymEnv("CartPole-v1"), acting, frames_per_batch=2, policy_device="cuda")
    with torch.no_grad():
        learner.weight.fill_(3.0)
    collector.update_policy_weights_()
    copied = next(collector.policy.parameters())
    assert copied.device.type == "cuda"
    assert bool((copied == 3).all())
    collector.next()


def test_nothing_moves_that_is_there_already():
    value = torch.ones(2)
    assert mover(CPU)(value) is value
    batch = TensorDict({"a": value}, [2])
    assert mover(CPU)(batch) is batch
    assert mover(torch.device("meta"))(batch)["a"].device.type == "meta"


def test_a_policy_elsewhere_acts_on_a_copy():
    def policy(root):
        root["seen"] = root["seen"] + 1
        root["action"] = root["seen"] * 2

    root = TensorDict({"seen": torch.ones(3), "kept": torch.zeros(3)}, [3])
    kept = root["kept"]
    found = CrossDevicePolicy(policy, lambda td: td.clone(), lambda written: written)(root)
    assert found["action"].tolist() == [4, 4, 4]
    assert found["seen"].tolist() == [2, 2, 2]
    assert found["kept"] is kept


def test_a_copy_is_waited_for_where_work_goes_on_before_it_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert synchroniser(CPU) is None
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert synchroniser(CPU) is torch.mps.synchronize
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert synchroniser(CPU) is torch.cuda.synchronize
    assert synchroniser(torch.device("cuda:1")) is None  # there, work is done in order
    with pytest.raises(RuntimeError, match="do not know how to wait for copies to xpu"):
        mover(torch.device("xpu"))


@pytest.mark.parametrize("synchronise", [True, False])
def test_each_move_is_waited_for_once_unless_the_caller_does(monkeypatch, synchronise):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    wide = TensorDict({"a": torch.ones(3), "b": {"c": torch.ones(3, 2)}}, [3])

    class Elsewhere(TensorDict):
        """Says that it is on another device until it was moved."""

        def values(self, *given):
            return [torch.empty(3, device="meta")]

        def to(self, device, non_blocking):
            assert non_blocking
            return wide

    assert mover(CPU, synchronise=synchronise)(Elsewhere({}, [3])) is wide
    assert mover(CPU, synchronise=synchronise)(wide) is wide
    assert waited == [1] * synchronise


def test_batches_without_data_lie_where_they_are_stored():
    for options in ({}, {"set_truncated": True}, {"compact_obs": True}):
        collector = Collector(CountingEnv(3), frames_per_batch=4, storing_device="meta", **options)
        for _ in range(2):
            leaves = collector.next().values(True, True)
            assert {leaf.device.type for leaf in leaves} == {"meta"}
        assert collector.stats()["episodes"] == 2


def test_a_policy_on_another_device_is_called_on_its_own():
    class There(nn.Linear):
        def forward(self, observation):
            assert observation.device.type == "meta"
            return super().forward(observation)

    collector = Collector(CountingEnv(), There(1, 2, device="meta"), frames_per_batch=2)
    with pytest.raises(NotImplementedError, match="meta"):  # what comes back has no data
        collector.next()


NAME = "CartPole-v1"


def on_gpu():
    """A policy on CUDA, that draws its actions there."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2, device="cuda")

    def act(observation):
        logits = net(observation)
        choice = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
        return nn.functional.one_hot(choice, 2).bool(), logits

    module = TensorDictModule(act, ["observation"], ["action", "logits"])
    module.net = net
    return module


@pytest.mark.gpu
def test_policy_and_batches_on_a_gpu():
    net = nn.Linear(4, 2, device="cuda")

    def act(observation):
        return nn.functional.one_hot(net(observation).argmax(-1), 2).bool()

    policy = TensorDictModule(act, ["observation"], ["action"])
    collector = Collector(
        GymEnv("CartPole-v1"),
        policy,
        frames_per_batch=30,
        policy_device="cuda",
        storing_device="cuda",
    )
    batch = collector.next()
    assert batch["observation"].is_cuda
    assert batch["collector", "traj_ids"].is_cuda
    assert (batch["action"] == act(batch["observation"])).all()


@pytest.mark.gpu
@pytest.mark.parametrize("no_cuda_sync", [False, True])
@pytest.mark.parametrize(
    "places", ["cpu cuda cpu", "cuda cuda cpu", "cuda cuda cuda", "cuda cpu cuda"]
)
def test_every_step_is_whole_wherever_its_parts_are_played(places, no_cuda_sync):
    env_device, policy_device, storing_device = places.split()
    net = nn.Linear(4, 2, device=policy_device)
    module = TensorDictModule(net, ["observation"], ["logits"])
    acting = TensorDictSequential(
        module, TensorDictModule(lambda x: x > x.flip(-1), ["logits"], ["action"])
    )
    collector = Collector(
        SerialEnv(3, lambda: GymEnv(NAME, device=env_device)),
        acting,
        frames_per_batch=60,
        policy_device=policy_device,
        storing_device=storing_device,
        no_cuda_sync=no_cuda_sync,
        set_truncated=True,
    )
    collector.set_seed(0)
    batches = [collector.next() for _ in range(3)]
    torch.cuda.synchronize()
    rows = torch.cat(batches, -1)
    assert {leaf.device.type for leaf in rows.values(True, True)} == {storing_device}
    rows = rows.to("cpu")
    expected = net.cpu()(rows["observation"])
    assert torch.allclose(rows["logits"], expected, atol=1e-4)  # another order of sums
    assert not check_layout(rows).errors
    over = rows["next", "done"][:, :-1, 0]
    same = (rows["next", "observation"][:, :-1] == rows["observation"][:, 1:]).all(-1)
    assert (same | over).all()
    assert (rows["is_init"][:, 1:, 0] == over).all()


@pytest.mark.gpu
def test_a_buffer_on_the_cpu_takes_rows_that_have_arrived_though_nobody_waits():
    policy = on_gpu()
    buffer = ReplayBuffer(storage=LazyTensorStorage(5_000))
    collector = Collector(
        GymEnv(NAME),
        policy,
        frames_per_batch=500,
        policy_device="cuda",
        storing_device="cpu",
        no_cuda_sync=True,
        replay_buffer=buffer,
    )
    for _ in range(10):
        collector.next()
    rows = buffer[:]
    expected = policy.net.cpu()(rows["observation"])
    assert torch.allclose(rows["logits"], expected, atol=1e-4)  # another order of sums


def test_a_batch_is_waited_for_where_something_reads_it():
    def waits(**options):
        made = Collector(CountingEnv(), frames_per_batch=4, no_cuda_sync=True, **options)
        return not made.options.caller_waits

    assert not waits()
    assert waits(replay_buffer=ReplayBuffer(storage=LazyTensorStorage(8)))
    assert waits(postproc=lambda batch: batch)
    assert waits(post_collect_hook=lambda batch: None)
    assert waits(trajs_per_batch=1)
    with pytest.warns(UserWarning, match="split_trajs pads"):
        assert waits(split_trajs=True)
    with MultiSyncCollector([CountingEnv] * 2, frames_per_batch=4, no_cuda_sync=True) as several:
        assert not any(made["no_cuda_sync"] for made in several.options.of_workers())


@pytest.mark.gpu
@pytest.mark.parametrize("trajs_per_batch", [None, 2])
def test_a_saved_collector_goes_on_with_the_generators_of_its_device(trajs_per_batch):
    options = {"policy_device": "cuda", "storing_device": "cuda", "frames_per_batch": 40}
    options["trajs_per_batch"] = trajs_per_batch
    collector = Collector(GymEnv(NAME), on_gpu(), **options)
    collector.set_seed(0)
    collector.next()
    state = collector.state_dict()
    expected = [collector.next() for _ in range(3)]
    other = Collector(GymEnv(NAME), on_gpu(), **options)
    other.load_state_dict(state)
    for batch in expected:
        assert batch["observation"].is_cuda
        assert (other.next() == batch).all()


@pytest.mark.gpu
def test_workers_act_on_a_gpu_and_take_new_weights_from_it():
    policy = nn.Linear(4, 2, device="cuda")
    with MultiSyncCollector(
        [functools.partial(GymEnv, NAME, categorical_action_encoding=True)] * 2,
        TensorDictSequential(
            TensorDictModule(policy, ["observation"], ["logits"]),
            TensorDictModule(functools.partial(torch.argmax, dim=-1), ["logits"], ["action"]),
        ),
        frames_per_batch=20,
        policy_device="cuda",
        storing_device="cuda",
        mp_start_method="spawn",
    ) as collector:
        for number in range(3):
            with torch.no_grad():
                policy.bias.fill_(number)
            collector.update_policy_weights_()
            batch = collector.next()
            assert batch["observation"].is_cuda
            assert (batch["collector", "policy_version"] == number + 1).all()
            assert torch.allclose(batch["logits"], policy(batch["observation"]), atol=1e-4)


@pytest.mark.parametrize("options", [{"storing_device": "cpu"}, {"device": "cpu"}, {}], ids=str)
def test_batches_name_the_device_that_was_chosen_for_them(options):
    device = CPU if options else None
    for more in ({}, {"trajs_per_batch": 1}, {"compact_obs": True}):
        collector = Collector(CountingEnv(3), frames_per_batch=6, **options, **more)
        batch = collector.next()
        assert (batch.device, batch["next"].device) == (device, device)
    assert Collector(CountingEnv(3), frames_per_batch=6, **options).rollout().device == device
    for kind in (MultiSyncCollector, MultiAsyncCollector):
        more = {"frames_per_batch": 6, "mp_start_method": "fork"}
        with kind([CountingEnv] * 2, **more, **options) as workers:
            batch = workers.next()
            assert (batch.device, batch["next"].device) == (device, device)
