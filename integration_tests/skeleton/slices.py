"""The slice sampler: walks stored rows from each to the one that continues it."""

from collections import defaultdict

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from skeleton.buffer import ListBuffer
from skeleton.segments import continues


def stored_runs(buffer: ListBuffer) -> list[list[int]]:
    """List the positions of each longest run of rows in which each continues the one before."""
    places = defaultdict(list)
    for position, (_, marker, _) in enumerate(buffer.stored):
        places[marker.traj_id, marker.traj_step].append(position)
    following = {}
    for position, (_, marker, _) in enumerate(buffer.stored):
        for candidate in places.get((marker.traj_id, marker.traj_step + 1), []):
            if continues(marker, buffer.stored[candidate][1]):
                following[position] = candidate
    inner = set(following.values())
    runs = [[p] for p in range(len(buffer)) if buffer.stored[p][1].is_real and p not in inner]
    for run in runs:
        while run[-1] in following:
            run.append(following[run[-1]])
    return runs


def sample_slices(
    buffer: ListBuffer, num_slices: int, slice_len: int, generator: torch.Generator
) -> TensorDictBase:
    """Draw slices of up to ``slice_len`` rows, end to end: a run, then a start in it, uniformly."""
    runs, slices = stored_runs(buffer), []
    for _ in range(num_slices):
        run = runs[int(torch.randint(len(runs), (), generator=generator))]
        start = int(torch.randint(max(len(run) - slice_len, 0) + 1, (), generator=generator))
        slices.append(run[start : start + slice_len])
    sample = buffer.read([position for part in slices for position in part])
    sample[keys.SLICE_IDS] = torch.tensor([i for i, part in enumerate(slices) for _ in part])
    is_last = torch.tensor([[p == part[-1]] for part in slices for p in part])
    sample[keys.IS_INIT] |= is_last.roll(1, 0)  # a slice starts after the last row of another
    # a cut is a truncation, and a termination stays the termination that it is
    sample[keys.NEXT_TRUNCATED] |= is_last & ~sample[keys.NEXT_TERMINATED]
    sample[keys.NEXT_DONE] |= is_last
    return sample
