"""Workers in other ranks: what arrives, with which weights, and what is left when one ends."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import torch

from rl_collect import DistributedDataCollector, MultiSyncCollector, RPCDataCollector
from rl_envs.testing import CountingEnv, EpisodeStepEnv

HEAD = """
import functools, json, os, signal, sys
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from rl_collect import DistributedDataCollector, DistributedSyncCollector
from rl_envs.testing import CountingEnv, EpisodeStepEnv
from rl_layout import check_layout

EPISODES = functools.partial(EpisodeStepEnv, [(7, "terminated"), (4, "truncated")])

class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), float(os.environ["RANK"])))

    def forward(self, observation):
        return torch.tensor([True, False]), self.weight.clone()

policy = TensorDictModule(Weighted(), ["observation"], ["action", "weight"])

def tell(**found):
    print(json.dumps(found), flush=True)
"""


@pytest.fixture
def ranks(tmp_path):
    """Runs a script in ranks, of which some are taken for those of another machine."""
    started = []

    def start(body, nodes=(0, 0, 1)):
        path = tmp_path / "script.py"
        path.write_text(HEAD + body)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(len(nodes))}
        for rank, node in enumerate(nodes):
            place = {"RANK": str(rank), "GROUP_RANK": str(node)}
            started.append(
                subprocess.Popen(
                    [sys.executable, path],
                    env={**os.environ, **common, **place},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return started

    yield start
    for one in started:
        one.kill()
        one.communicate()


def ended(processes):
    """The exit codes of all, what the first one told, and what each complained of."""
    texts = [one.communicate(timeout=120) for one in processes]
    assert all(not out for out, _ in texts[1:])  # no line after the constructor is run there
    told = [json.loads(line) for line in texts[0][0].splitlines()]
    return [one.returncode for one in processes], told, [error for _, error in texts]


@pytest.mark.slow
def test_batches_of_ranks_are_those_of_processes_wherever_they_are(ranks):
    processes = ranks("""
torch.manual_seed(3)
options = {"frames_per_batch": 30, "total_frames": 120}
with DistributedSyncCollector(EPISODES, **options) as collector:
    nodes = collector._workers.pool.nodes  # private: users need not know where workers are
    batches = list(collector)
rows = torch.cat(batches, -1)
producers = (rows["collector", "traj_ids"] >> 32).unique().tolist()
tell(num_nodes=len(set(nodes)), ok=check_layout(rows).ok, producers=len(producers),
     shape=rows.shape, observation=rows["observation"].tolist(), done=rows["next", "done"].tolist())
""")
    codes, (told,), errors = ended(processes)
    assert codes == [0, 0, 0], errors
    assert told["num_nodes"] == 2
    assert told["producers"] == 2
    assert told["ok"]
    make = functools.partial(EpisodeStepEnv, [(7, "terminated"), (4, "truncated")])
    options = {"frames_per_batch": 30, "total_frames": 120, "mp_start_method": "fork"}
    with MultiSyncCollector([make] * 2, **options) as collector:
        rows = torch.cat(list(collector), -1)
    assert told["shape"] == list(rows.shape) == [2, 60]
    assert told["observation"] == rows["observation"].tolist()
    assert told["done"] == rows["next", "done"].tolist()


@pytest.mark.slow
def test_ranks_act_with_the_weights_of_the_learner_and_resume_bit_for_bit(ranks):
    processes = ranks("""
with DistributedSyncCollector(EPISODES, policy, frames_per_batch=10) as collector:
    for number in (1, 2, 5):
        batch = collector.next()
        tell(weight=batch["weight"].unique().tolist(),
             version=batch["collector", "policy_version"].unique().tolist())
        policy.module.weight.data.fill_(number)
        collector.update_policy_weights_()
    state = collector.state_dict()
    expected = [collector.next() for _ in range(3)]
    collector.load_state_dict(state)
    tell(same=[bool((collector.next() == one).all()) for one in expected])
""")
    codes, told, errors = ended(processes)
    assert codes == [0, 0, 0], errors
    assert told[:3] == [{"weight": [n], "version": [v]} for n, v in ((0, 0), (1, 1), (2, 2))]
    assert told[3] == {"same": [True] * 3}


@pytest.mark.slow
def test_batches_come_one_by_one_and_go_to_a_buffer_of_the_learner(ranks):
    processes = ranks("""
class Rows:
    def __init__(self):
        self.batches = []
    def extend(self, batch):
        self.batches.append(batch.reshape(-1))

buffer = Rows()
options = {"frames_per_batch": 12, "total_frames": 120, "replay_buffer": buffer}
with DistributedDataCollector(EPISODES, policy, update_after_each_batch=True, **options) as one:
    for index, _ in enumerate(one):
        policy.module.weight.data.fill_(index + 1)
rows = torch.cat(buffer.batches)
ids, steps = rows["collector", "traj_ids"], rows["collector", "traj_step"]
version = rows["collector", "policy_version"]
tell(rows=len(rows), each=len((ids * 10 + steps).unique()),
     steps=torch.equal(rows["observation"][:, 1], steps),
     weights=torch.equal(rows["weight"][:, 0], version.float()))
""")
    codes, (told,), errors = ended(processes)
    assert codes == [0, 0, 0], errors
    assert told == {"rows": 120, "each": 120, "steps": True, "weights": True}


DEATH = """
class Dies(CountingEnv):
    count = 0
    def _step(self, tensordict):
        self.count += 1
        if self.count == 7 and os.environ["RANK"] == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)

options = {"frames_per_batch": 4, "timeout_s": 60.0}
"""


@pytest.mark.slow
def test_a_rank_that_dies_is_named_and_the_others_go_on_where_they_may(ranks):
    processes = ranks(
        DEATH
        + """
with DistributedDataCollector(functools.partial(Dies, 9), min_workers=1, **options) as collector:
    batches = [collector.next() for _ in range(20)]
    tell(missing=collector.stats()["missing"], rows=sum(map(len, batches)))
"""
    )
    codes, (told,), errors = ended(processes)
    assert codes == [0, 0, -signal.SIGKILL], errors
    assert told == {"missing": [1], "rows": 80}


@pytest.mark.slow
def test_the_death_of_a_rank_ends_the_learner_where_all_are_needed(ranks):
    processes = ranks(
        DEATH
        + """
with DistributedSyncCollector(functools.partial(Dies, 9), **options) as collector:
    list(zip(range(20), collector))
"""
    )
    codes, _, errors = ended(processes)
    assert codes == [1, 0, -signal.SIGKILL]
    assert "WorkerDied: collector worker 1 (process" in errors[0]
    assert "died in 'play': Connection closed by peer" in errors[0]


@pytest.mark.slow
def test_an_exception_of_a_rank_arrives_with_its_traceback(ranks):
    processes = ranks("""
class Fails(CountingEnv):
    def _step(self, tensordict):
        raise ZeroDivisionError("no way")

with DistributedDataCollector(lambda: Fails(3), frames_per_batch=4) as collector:
    collector.next()
""")
    codes, _, errors = ended(processes)
    assert codes == [1, 0, 0]
    assert "ZeroDivisionError: no way" in errors[0]
    assert "in _step" in errors[0]


@pytest.mark.slow
def test_ranks_end_with_a_learner_that_was_killed(ranks):
    processes = ranks("""
with DistributedDataCollector(EPISODES, policy, frames_per_batch=4) as collector:
    collector.next()
    tell(played=1)
    signal.pause()
""")
    assert processes[0].stdout.readline() == '{"played": 1}\n'
    processes[0].kill()
    codes, _, errors = ended(processes)
    assert codes == [-signal.SIGKILL, 1, 1]
    assert all(f"rank {one}: the learner, rank 0, is gone" in errors[one] for one in (1, 2))


@pytest.mark.slow
def test_torchrun_starts_it(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        HEAD
        + """
with DistributedSyncCollector(EPISODES, policy, frames_per_batch=10, total_frames=40) as collector:
    tell(rows=sum(batch.numel() for batch in collector))
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    found = subprocess.run(
        [*command, path], env=environ, capture_output=True, text=True, timeout=120
    )
    assert found.stdout == '{"rows": 40}\n', found.stderr
    assert found.returncode == 0


BUFFER = type("Shared", (), {"is_shared": True, "extend": lambda self, batch: None})()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, ValueError, r"no rank \(RANK and WORLD_SIZE are not set\): start it by `torchrun"),
        ({"backend": "mpi"}, ValueError, "backend='mpi': batches and weights travel on the CPU"),
        ({"launcher": "mp"}, TypeError, "launcher: the collector starts no rank; torchrun"),
        ({"mp_start_method": "fork"}, TypeError, "ranks have no mp_start_method"),
        ({"restart_workers": True}, ValueError, "cannot be replaced by the collector"),
        ({"replay_buffer": BUFFER}, ValueError, "each rank has made a shared buffer of its own"),
    ],
)
def test_what_ranks_cannot_do_is_refused(options, kind, message, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(kind, match=message):
        DistributedDataCollector([CountingEnv], frames_per_batch=4, **options)


@pytest.mark.slow
def test_a_learner_without_another_rank_is_told_how_to_start_some(ranks):
    codes, _, errors = ended(ranks("DistributedDataCollector(EPISODES, frames_per_batch=4)", (0,)))
    assert codes == [1]
    assert "ValueError: one rank is the learner, and no other is there to play" in errors[0]


def test_the_collector_over_rpc_says_what_to_use():
    with pytest.raises(
        NotImplementedError, match=r"use DistributedDataCollector .* or RayCollector"
    ):
        RPCDataCollector([CountingEnv], frames_per_batch=4)
