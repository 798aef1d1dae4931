"""What is left when a learner is interrupted or killed: nothing."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ray

LEARNER = """
import functools, signal, sys
import torch
from rl_collect import RayCollector
from rl_envs.testing import CountingEnv
from rl_replay import LazyTensorStorage, RayReplayBuffer

# a shell that starts its commands in the background lets them ignore interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)

class Waits(CountingEnv):
    def _step(self, tensordict):
        signal.pause()

session = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "log_to_driver": False}
session["_temp_dir"] = sys.argv[1]
storage = functools.partial(LazyTensorStorage, 1000)
buffer = RayReplayBuffer(storage=storage, ray_init_config=session)
collector = RayCollector([Waits], frames_per_batch=3, replay_buffer=buffer, shutdown_timeout_s=0.2)
with collector:
    print(*collector.pids, flush=True)
    collector.next()
"""


def processes_of(home):
    """The processes whose command line or environment names a folder."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if home.encode() in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_learner_ends(ray_home, tmp_path, how, gone):
    (tmp_path / "learner.py").write_text(LEARNER)
    before = set(os.listdir("/dev/shm"))
    command, pipe = [sys.executable, tmp_path / "learner.py", ray_home], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as learner:
        pids = [int(one) for one in learner.stdout.readline().split()]
        session = processes_of(ray_home)
        learner.send_signal(how)
        _, told = learner.communicate(timeout=60)
    try:
        assert len(pids) == 1
        assert set(pids) < set(session)  # those of Ray itself are in there as well
        assert ("KeyboardInterrupt" in told) == (how == signal.SIGINT)
        assert all(gone(pid) for pid in (session if how == signal.SIGINT else pids))
    finally:
        for pid in processes_of(ray_home):  # agents of Ray's outlive a learner that was killed
            os.kill(pid, signal.SIGKILL)
    assert set(os.listdir("/dev/shm")) <= before
