# /// script
# requires-python = ">=3.11"
# dependencies = ["rl-layout"]
# ///
"""From flat trajectories to returns, dense views and a checked layout, in one minute of reading.

Three episodes lie end to end in one batch. Nothing is padded; the markers on the steps say where
each begins and ends.
"""

from __future__ import annotations

import torch

from rl_layout import EndKind, Segments, check_layout, draw_layout, split_trajectories
from rl_layout.synthetic import trajectories


def main() -> None:
    """Walk one batch through the views that training code asks for."""
    kinds = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
    batch = trajectories([12, 5, 9], kinds)
    segments = Segments.of(batch)
    print(f"one flat batch: {segments}\n\n{draw_layout(batch)}\n")

    reward = batch["next", "reward"]
    print("returns per episode:", segments.sum(reward).flatten().tolist())
    print("mean reward per episode:", segments.mean(reward).flatten().tolist())

    padded = split_trajectories(batch)
    print(f"padded: {list(padded.shape)}, {padded['collector', 'mask'].float().mean():.0%} real")
    blocks = segments.time_blocks(max_waste=0.1)
    shapes = [tuple(block.rows.shape) for block in blocks]
    cells = sum(block.rows.numel() for block in blocks)
    print(f"time blocks [steps, episodes]: {shapes}, {segments.num_real / cells:.0%} real")

    broken = batch.clone()
    broken["is_init"][12] = False  # the second episode's start is lost
    print(f"\nwith one marker lost, {check_layout(broken)}")
    assert not check_layout(broken).ok
    assert check_layout(batch).ok
    assert torch.equal(segments.unpad(segments.pad(reward)), reward)


if __name__ == "__main__":
    main()
