"""Frames, running statistics and hindsight goals, compared with torchrl.

Run with `nox -s "bench(rl-transforms)"`. Medians in one process, taken in turn, ratios printed.
"""

from __future__ import annotations

import warnings

import torch
from bench import medians_us, report, session
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import LazyTensorStorage, ReplayBuffer
from rl_transforms import CatFrames, HindsightRelabel, RewardSum, VecNorm

warnings.filterwarnings("ignore")


def film(batch: TensorDict) -> TensorDict:
    """The batch with frames of 84 x 84 bytes."""
    for place in ((), ("next",)):
        batch[(*place, "pixels")] = torch.randint(0, 256, (*batch.shape, 1, 84, 84)).to(torch.uint8)
    batch["next", "pixels"][:-1] = batch["pixels"][1:]
    return batch


def frames() -> None:
    """Samples of 256 rows with stacks of 4: rebuilt from frames, and read where all are stored."""
    rows = film(trajectories([200] * 20, EndKind.TERMINATED))
    single = ReplayBuffer(
        storage=LazyTensorStorage(4000), transform=CatFrames(4, -3), batch_size=256
    )
    single.extend(rows)
    stacked = CatFrames(4, -3)(rows).exclude("pixels", ("next", "pixels"))
    plain = ReplayBuffer(storage=LazyTensorStorage(4000), batch_size=256)
    plain.extend(stacked)
    bare = ReplayBuffer(storage=LazyTensorStorage(4000), batch_size=256)
    bare.extend(rows)
    print("256 rows of 4,000, stacks of 4 frames of 84 x 84 bytes at the root and under next")
    took = medians_us(15, single.sample, plain.sample, bare.sample)
    report("rebuilt from frames stored once", took[0], took[1], peer="stacks stored")
    print(f"  {'the same without stacks':38}{took[2]:10.0f} us")


def frames_of_an_environment() -> None:
    """A step that pushes a frame, 8 environments."""
    from torchrl.envs import CatFrames as Peer

    ours, theirs = CatFrames(4, -3), Peer(4, -3, in_keys=["pixels"])
    frame = torch.zeros(8, 1, 84, 84, dtype=torch.uint8)
    after = TensorDict({"pixels": frame}, [8])
    root = ours.reset(after)
    theirs._call(after.clone())
    print("a step of 8 environments, frames of 84 x 84 bytes")
    both = (lambda: ours.step(root, after), lambda: theirs._call(after.copy()))
    report("CatFrames", *medians_us(301, *both))


def running_statistics() -> None:
    """A step that counts and scales, 8 environments."""
    from torchrl.envs import VecNorm as Peer

    after = TensorDict({"observation": torch.randn(8, 17), "reward": torch.randn(8, 1)}, [8])
    ours, shared = VecNorm(), VecNorm().share_memory()
    theirs = Peer(in_keys=["observation"])
    print("a step of 8 environments, observations of 17 numbers")
    calls = (
        lambda: ours.step(after, after),
        lambda: theirs._call(after.copy()),
        lambda: shared.step(after, after),
    )
    alone, peer, together = medians_us(1001, *calls)
    report("VecNorm", alone, peer)
    report("VecNorm that shares", together, peer)


def goals() -> None:
    """Samples of 256 rows of 100,000, episodes of 50 steps, four of five relabelled."""
    from torchrl.data import HERReplayBuffer
    from torchrl.data import LazyTensorStorage as PeerStorage

    rows = trajectories([50] * 2000)
    for place in ((), ("next",)):
        rows[(*place, "achieved_goal")] = rows[(*place, "observation")]
        rows[(*place, "desired_goal")] = rows[(*place, "observation")] + 50

    def reward(batch: TensorDict) -> torch.Tensor:
        return -(batch["next", "achieved_goal"] - batch["desired_goal"]).norm(dim=-1, keepdim=True)

    relabel = HindsightRelabel(reward)
    ours = ReplayBuffer(storage=LazyTensorStorage(100_000), transform=relabel, batch_size=256)
    theirs = HERReplayBuffer(reward, storage=PeerStorage(100_000), batch_size=256)
    ours.extend(rows)
    theirs.extend(rows.clone())
    print("256 of 100,000 rows, episodes of 50 steps, goals of later steps")
    report("HindsightRelabel", *medians_us(101, ours.sample, theirs.sample))


def sums() -> None:
    """The sums of 65,536 rewards, in the order of the steps."""
    for batch in (
        environments(64, 1024, [200, 170, 230], [EndKind.TERMINATED]),
        trajectories([200] * 327 + [136]),
    ):
        (took,) = medians_us(15, lambda b=batch: RewardSum().rows(b))
        print(f"RewardSum.rows of {list(batch.shape)!s:22}{took:10.0f} us")


if __name__ == "__main__":
    with session():
        torch.manual_seed(0)
        frames()
        frames_of_an_environment()
        running_statistics()
        goals()
        sums()
