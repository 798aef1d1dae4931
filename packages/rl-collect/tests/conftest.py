"""Workers that end at a chosen line, policies, environments and buffers of several test files."""

import contextlib
import os
import pathlib
import select
import shutil
import signal
import sys
import tempfile

import pytest
import torch
from tensordict.nn import TensorDictModuleBase

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv
from rl_specs import Unbounded
from rl_transforms import TensorDictPrimer


class Trap:
    """A `pre_collect_hook` that lets a worker end, once of all, inside a function.

    It looks at what the worker runs from its second batch on, and changes nothing.

    Args:
        path: a file that says that somebody has died already.
        function: where to end.
        lines: how many of its lines are run before; at its call where 0.
    """

    def __init__(self, path, function, lines=0):
        self.path, self.code, self.left = path, function.__code__, lines
        self.batches = 0

    def __call__(self):
        self.batches += 1
        if self.batches == 2 and not self.path.exists():
            sys.settrace(self.trace)

    def trace(self, frame, event, argument):
        if frame.f_code is not self.code:
            return None
        if event in ("call", "line"):
            self.left -= 1
        if self.left < 0:
            with contextlib.suppress(FileExistsError):  # another worker was here before
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


@pytest.fixture
def trap(tmp_path):
    """Make a trap on a function."""
    return lambda function, lines=0: Trap(tmp_path / "died", function, lines)


def gone(pid):
    """Wait until a process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([descriptor], [], [], 30)
    os.close(descriptor)
    return bool(ready)


@pytest.fixture(name="gone")
def gone_fixture():
    """Wait for the end of a process."""
    return gone


class _Buffer(list):
    """Stores every batch."""

    def extend(self, batch):
        self.append(batch)

    def add(self, step):
        self.append(step)


class _Memory(TensorDictModuleBase):
    """A policy that counts its own steps in a recurrent state."""

    def __init__(self):
        super().__init__()
        self.in_keys = ["observation", "hidden"]
        self.out_keys = ["action", ("next", "hidden")]

    def forward(self, tensordict):
        count = tensordict["hidden"]
        action = torch.zeros(*tensordict.batch_size, 2, dtype=torch.bool)
        action[..., 0] = True
        tensordict.set("action", action)
        return tensordict.set(("next", "hidden"), count + 1)

    def make_tensordict_primer(self):
        return TensorDictPrimer(hidden=Unbounded((1,)), expand_specs=True)


def _cart_poles(count=3):
    return SerialEnv(count, [lambda: GymEnv("CartPole-v1")] * count)


def _sampled(root):
    logits = root["observation"][..., :2]
    choice = torch.multinomial(logits.softmax(-1), 1)
    root["action"] = torch.zeros(logits.shape, dtype=torch.bool).scatter(-1, choice, True)
    return root


def _collected(env, policy=None, *, seed=0, **options):
    torch.manual_seed(seed)
    collector = Collector(env, policy, producer=7, **options)
    collector.set_seed(seed)
    with collector:
        return list(collector)


@pytest.fixture(scope="session")
def list_buffer():
    """Stores every batch."""
    return _Buffer


@pytest.fixture(scope="session")
def memory_policy():
    """A policy that counts its own steps in a recurrent state."""
    return _Memory


@pytest.fixture(scope="session")
def cart_poles():
    return _cart_poles


@pytest.fixture(scope="session")
def collected():
    return _collected


@pytest.fixture(scope="session")
def sampled():
    return _sampled


@contextlib.contextmanager
def _ray_home():
    """Ray with a home of its own; no session yet."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: rl-collect[ray]")
    from ray.cloudpickle import list_registry_pickle_by_value

    with pytest.MonkeyPatch.context() as patch:
        home = tempfile.mkdtemp(prefix="ray")  # short: sockets are in there
        patch.setenv("HOME", home)
        patch.setenv("RAY_TMPDIR", home)  # a cluster notes its address in a folder "ray" there
        pathlib.Path(home, "ray").mkdir()
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # what tests define is imported nowhere else; another home may have named some before
        here, named = str(pathlib.Path(__file__).parent), list_registry_pickle_by_value()
        tests = [
            module
            for module in sys.modules.values()
            if str(getattr(module, "__file__", "")).startswith(here)
            and module.__name__ not in named
        ]
        for module in tests:
            ray.cloudpickle.register_pickle_by_value(module)
        ray.shutdown()  # a page's session lasts until the process ends
        try:
            yield home
        finally:
            ray.shutdown()
            for module in tests:
                ray.cloudpickle.unregister_pickle_by_value(module)
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def own_ray_home():
    """Makes a home for Ray, for tests that say how long it is theirs."""
    return _ray_home


@pytest.fixture(scope="module")
def ray_home():
    """Ray with a home of its own for a module of tests; no session yet."""
    with _ray_home() as home:
        yield home


@pytest.fixture(scope="module")
def ray_session(ray_home):
    """One session of Ray for a module of tests."""
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "_temp_dir": ray_home}
    ray.init(num_cpus=4, object_store_memory=100 * 2**20, **options)
    return ray
