"""An ensemble of four buffers, alongside a sample of each of them.

PYTHONPATH=tools python packages/rl-replay/benchmarks/ensembles.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from bench import medians_us, report, session
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, ReplayBufferEnsemble, SliceSampler, TensorDictReplayBuffer

ROWS, BATCH, BUFFERS, LENGTH = 250_000, 256, 4, 16


def steps(count: int) -> TensorDict:
    """Rows of nine leaves in trajectories of 100 steps."""
    number = torch.arange(count)
    flags = (number % 100 == 99).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.rand(count, 4),
            "action": torch.rand(count, 2),
            "collector": {"traj_ids": number // 100, "traj_step": number % 100},
            "next": {
                "observation": torch.rand(count, 4),
                "reward": torch.rand(count, 1),
                "done": flags,
                "terminated": flags,
                "truncated": torch.zeros_like(flags),
            },
        },
        [count],
    )


def buffers(*, slices: bool = False) -> list[TensorDictReplayBuffer]:
    """Four buffers with rows of their own."""
    found = []
    for _ in range(BUFFERS):
        options = {"sampler": SliceSampler(slice_len=LENGTH)} if slices else {}
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), **options)
        buffer.extend(steps(ROWS))
        found.append(buffer)
    return found


def four(members: list[TensorDictReplayBuffer]) -> Callable[[], object]:
    """A sample of each of them."""
    return lambda: [member.sample(BATCH // BUFFERS) for member in members]


def peer() -> Callable[[], object] | None:
    """TorchRL's ensemble over the same rows, or None if it is not installed."""
    try:
        from torchrl.data import LazyTensorStorage as Theirs
        from torchrl.data import ReplayBufferEnsemble as TheirEnsemble
        from torchrl.data import TensorDictReplayBuffer as TheirBuffer
    except ImportError:
        return None
    members = [TheirBuffer(storage=Theirs(ROWS), batch_size=BATCH) for _ in range(BUFFERS)]
    for member in members:
        member.extend(steps(ROWS))
    made = TheirEnsemble(*members, sample_from_all=True, batch_size=BATCH)
    return made.sample


def main() -> None:
    """Print every figure."""
    with session():
        for slices in (False, True):
            members = buffers(slices=slices)
            calls = [four(members)]
            for flat in (False, True):
                made = ReplayBufferEnsemble(
                    *members, sample_from_all=True, batch_size=BATCH, flat=flat
                )
                calls.append(made.sample)
            apart, stacked, flat_us = medians_us(500, *calls, shuffle=True)
            what = f"slices of {LENGTH}" if slices else "rows"
            report(f"{BATCH} {what} of {BUFFERS} buffers", stacked, apart, peer="four samples")
            report(f"{BATCH} {what}, flat", flat_us, apart, peer="four samples")
        theirs = peer()
        if theirs is not None:
            ours = ReplayBufferEnsemble(*buffers(), sample_from_all=True, batch_size=BATCH)
            found = medians_us(200, ours.sample, theirs, shuffle=True)
            report(f"{BATCH} rows of {BUFFERS} buffers, the peer's", *found)


if __name__ == "__main__":
    main()
