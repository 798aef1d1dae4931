"""Minutes of asynchronous collection, sampling and training: does anything grow, does it end clean?

Run with `nox -s soak`, or `nox -s soak -- --seconds 60`. Two workers play a CartPole with a
recurrent policy and write whole trajectories into a buffer, while the learner samples slices,
trains, and publishes new weights. Printed are steps, updates and memory; the exit status is 1
where memory grew, or a process, a descriptor or a shared segment was left.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import MultiAsyncCollector
from rl_envs import GymEnv
from rl_layout import check_layout
from rl_policies import OneHotCategorical, ProbabilisticActor, ValueOperator
from rl_recurrent import GRUModule
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_value import GAE, ClipPPOLoss

HIDDEN, CAPACITY, SLICES, SLICE_LEN, WORKERS = 32, 20_000, 16, 16, 2
SAMPLES_OF_MEMORY = 120
MOST_GROWTH = 0.03  # of the memory of all processes, between the second and the last quarter
SHORTEST = 60.0  # seconds; growth says nothing while processes still warm up


def make_env() -> GymEnv:
    """One CartPole."""
    return GymEnv("CartPole-v1")


def make_networks() -> tuple[ProbabilisticActor, TensorDictSequential]:
    """A recurrent actor, and a critic on the same features."""
    body = GRUModule(4, HIDDEN, in_key="observation", out_key="features")
    logits = TensorDictModule(nn.Linear(HIDDEN, 2), ["features"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(body, logits),
        in_keys=["logits"],
        spec=make_env().action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return actor, TensorDictSequential(body, ValueOperator(nn.Linear(HIDDEN, 1), ["features"]))


def memory_mb() -> float:
    """Memory of this process and its children, what they share counted once, in MB."""
    me = psutil.Process()
    alive = [me, *me.children(recursive=True)]
    return sum(one.memory_full_info().pss for one in alive if one.is_running()) / 1e6


def left_behind() -> dict[str, int]:
    """What a process can leave: children, descriptors, segments with a name."""
    return {
        "processes": len(psutil.Process().children(recursive=True)),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "segments": len(unused_segments()),
    }


def unused_segments() -> list[Path]:
    """Segments of shared memory that no other process maps: those belong to strangers."""
    segments = Path("/dev/shm")
    found = list(segments.iterdir()) if segments.exists() else []
    mapped: set[str] = set()  # by inode: a semaphore is mapped before it has its name
    for process in psutil.process_iter() if found else ():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid():
                maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                mapped |= {line.split()[4] for line in maps if str(segments) in line}
    return [one for one in found if one.exists() and str(one.stat().st_ino) not in mapped]


@dataclass
class Record:
    """What happened until now.

    Attributes:
        updates: optimiser steps.
        broken: samples that `check_layout` refused.
        memory: at regular times, MB.
    """

    updates: int = 0
    broken: int = 0
    memory: list[float] = field(default_factory=list)

    def growth(self) -> float:
        """How much more memory the last quarter takes than the second, as a share."""
        quarter = max(len(self.memory) // 4, 1)
        early = statistics.median(self.memory[quarter : 2 * quarter] or self.memory)
        return statistics.median(self.memory[-quarter:]) / early - 1


def train(seconds: float) -> Record:
    """Collect, sample and train for some time."""
    actor, critic = make_networks()
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-4)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, lossless=True),
        sampler=SliceSampler(slice_len=SLICE_LEN),
        batch_size=SLICES * SLICE_LEN,
    )
    collector = MultiAsyncCollector(
        [make_env] * WORKERS, actor, frames_per_batch=200, trajs_per_batch=4, replay_buffer=buffer
    )
    record, begin = Record(), time.monotonic()
    with collector:
        collector.start()
        buffer.wait_until(SLICES * SLICE_LEN, timeout=120)
        while (passed := time.monotonic() - begin) < seconds:
            sample = buffer.sample()
            record.broken += bool(check_layout(sample).errors)
            estimator(sample)
            losses = loss(sample)
            optimizer.zero_grad()
            sum(value for key, value in losses.items() if key.startswith("loss_")).backward()
            optimizer.step()
            record.updates += 1
            if record.updates % 20 == 0:
                collector.update_policy_weights_()
            if passed > len(record.memory) * seconds / SAMPLES_OF_MEMORY:
                record.memory.append(memory_mb())
        print(f"{buffer.write_count:,} steps written, {record.updates:,} updates")
        print(f"{len(buffer):,} rows of {CAPACITY:,} are valid, the last at the end")
    return record


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    seconds = parser.parse_args(arguments).seconds
    torch.manual_seed(0)
    train(seconds=1.0)  # the interpreter starts helpers of its own with the first worker
    before = left_behind()
    record = train(seconds)
    gc.collect()
    after = left_behind()
    early, late = record.memory[len(record.memory) // 4], record.memory[-1]
    print(f"memory: {early:.0f} MB early, {late:.0f} MB late, growth {record.growth():+.1%}")
    print(f"left behind: { ({name: after[name] - before[name] for name in before}) }")
    faults = [name for name in before if after[name] > before[name]]
    faults += ["memory"] if seconds >= SHORTEST and record.growth() > MOST_GROWTH else []
    faults += ["samples"] if record.broken else []
    print(f"not clean: {', '.join(faults)}" if faults else "clean")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
