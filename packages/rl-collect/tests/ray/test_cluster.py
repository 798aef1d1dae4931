"""What is refused before any actor starts; most of it without a session."""

import functools
import socket
import sys
import threading

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collect import RayCollector
from rl_envs.testing import CountingEnv
from rl_workers import ray_cluster


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rl-collect\[ray\]'"):
        RayCollector([CountingEnv], frames_per_batch=2)


def test_a_device_that_a_worker_does_not_reserve_is_refused():
    message = "policy_device is cuda:0, and worker 1 reserves no GPU"
    with pytest.raises(ValueError, match=message):
        RayCollector(
            [CountingEnv] * 2,
            frames_per_batch=2,
            policy_device="cuda:0",
            remote_configs=[{"num_gpus": 1}, {}],
        )


def test_start_methods_are_for_processes():
    with pytest.raises(TypeError, match="actors have no mp_start_method"):
        RayCollector([CountingEnv], frames_per_batch=2, mp_start_method="fork")


@pytest.mark.parametrize("ports", [[], [0], [70_000], range(-1, 3), 20_000, ["a"], [2.5]])
def test_ports_that_are_none_are_refused(ports):
    with pytest.raises(ValueError, match=r"ports must be numbers of TCP ports, as range"):
        RayCollector([CountingEnv], frames_per_batch=2, ports=ports)


@pytest.mark.parametrize(("given", "message"), [(1.5, "an integer: got 1.5"), (0, "at least 1")])
def test_a_number_of_collectors_that_is_none_is_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=f"num_collectors .*{message}"):
        RayCollector(CountingEnv, num_collectors=given, frames_per_batch=2)


def held(lock):
    return CountingEnv(3 if lock.locked() else 5)


@pytest.mark.ray
def test_what_cannot_be_pickled_is_named_before_any_actor_starts(ray_home):
    import ray

    lock = threading.Lock()
    policy = TensorDictModule(nn.Linear(1, 2), ["observation"], ["action"])
    policy.lock = lock
    wrong = {
        "create_env_fn of worker 1, .*lambda": ([CountingEnv, lambda: held(lock)], None, {}),
        "policy of worker 0, TensorDictModule": ([CountingEnv], policy, {}),
        "postproc of worker 0, .*lambda": ([CountingEnv], None, {"postproc": lambda _: lock}),
    }
    for message, (makers, acting, options) in wrong.items():
        with pytest.raises(TypeError, match=f"{message}.*cannot be pickled"):
            RayCollector(makers, acting, frames_per_batch=2, **options)
    assert not ray.is_initialized()


@pytest.mark.ray
def test_an_address_that_does_not_answer_is_named(ray_home):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = {"ray_init_config": {"address": f"127.0.0.1:{port}"}}
    with pytest.raises(ConnectionError, match=rf"no Ray cluster answers at '127.0.0.1:{port}'"):
        RayCollector([CountingEnv], frames_per_batch=2, **options)


@pytest.mark.ray
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "timed out"),
        (b"", "hangs up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak gRPC"),
    ],
)
def test_a_port_that_is_no_cluster_is_named(ray_home, monkeypatch, answer, why):
    monkeypatch.setattr(ray_cluster, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply():
            end, _ = server.accept()
            with end:
                end.recv(64)
                if answer is None:
                    end.recv(64)  # until the other end hangs up
                elif answer:
                    end.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        options = {"ray_init_config": {"address": f"127.0.0.1:{server.getsockname()[1]}"}}
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at .*{why}"):
            RayCollector([CountingEnv], frames_per_batch=2, **options)
        thread.join()


@pytest.mark.ray
def test_more_than_the_cluster_has_is_said_at_once(ray_session):
    make = functools.partial(RayCollector, frames_per_batch=20)
    with pytest.raises(ValueError, match="5 workers ask for 5 CPU together, and the cluster has 4"):
        make(CountingEnv, num_collectors=5)
    with pytest.raises(ValueError, match=r"a worker asks for 1 CPU, 2 GPU, which none of the 1"):
        make([CountingEnv], remote_configs={"num_gpus": 2})
    with pytest.raises(ValueError, match=r"a worker asks for 6 CPU, .*they have 4 CPU"):
        make([CountingEnv], remote_configs={"num_cpus": 6})


class Signed(nn.Module):
    """Writes its weight where it can be seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.tensor([True, False]), self.weight.clone()


@pytest.mark.ray
def test_weights_are_handed_on_unasked_after_so_many_batches(ray_session):
    acting = TensorDictModule(Signed(), ["observation"], ["action", "weight"])
    seen = {}
    for options in ({"update_after_each_batch": True}, {"max_weight_update_interval": 3}):
        with RayCollector(
            [CountingEnv], acting, sync=True, frames_per_batch=2, **options
        ) as collector:
            versions = seen[next(iter(options))] = []
            for _ in range(7):
                batch = collector.next()
                versions.append(int(batch["collector", "policy_version"].max()))
    assert seen["update_after_each_batch"] == [0, 1, 2, 3, 4, 5, 6]
    assert seen["max_weight_update_interval"] == [0, 0, 0, 1, 1, 1, 2]
