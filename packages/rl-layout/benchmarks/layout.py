"""Segments and trajectory splits compared with torchrl and alongside plain passes over the data.

Run with `nox -s "bench(rl-layout)"`. Medians of fresh calls in one process, ratios printed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from bench import medians_us, report, session
from tensordict import TensorDict

from rl_layout import Segments, keys, split_trajectories, step_mdp
from rl_layout.segments.markers import FIELDS
from rl_layout.synthetic import trajectories

warnings.filterwarnings("ignore")


def median_us(call: Callable[[], object], repeats: int = 41) -> float:
    """Median duration of one call, in microseconds."""
    return medians_us(repeats, call)[0]


def lengths_of(rows: int, longest: int) -> list[int]:
    """Random lengths up to ``longest`` that add up to ``rows``."""
    drawn = torch.randint(1, longest + 1, (4 * rows // longest + 10,))
    kept = drawn[: int((drawn.cumsum(0) < rows).sum())].tolist()
    return [*kept, rows - sum(kept)]


def segments() -> None:
    """Segments of a million flat steps, against `nonzero` on one flag."""
    rows = 1_000_000
    batch = trajectories(lengths_of(rows, 399))
    batch.set(keys.MASK, torch.ones(rows, dtype=torch.bool))
    batch.set(keys.STEPS_TO_NEXT_OBS, torch.ones(rows, 1, dtype=torch.int64))
    flag = batch["is_init"]
    flat = flag.view(-1)
    arrays = [np.from_dlpack(batch[key]) for key, _, _ in FIELDS.values()]

    def afresh() -> Segments:
        flat[0] = True  # moves the version counter, so that nothing kept is used
        return Segments.of(batch)

    floors = {
        "torch nonzero": median_us(flat.nonzero),
        "numpy flatnonzero": median_us(lambda: np.flatnonzero(np.from_dlpack(flat))),
        "one read of every marker": median_us(lambda: [array.max() for array in arrays]),
    }
    print(f"{rows:,} steps, {len(Segments.of(batch)):,} trajectories")
    for name, floor in floors.items():
        report(name, floor)
    for name, call in (
        ("Segments from one flag", lambda: Segments.from_starts(flag)),
        ("Segments.of, all eight markers", afresh),
        ("Segments.of again, markers unchanged", lambda: Segments.of(batch)),
    ):
        took = median_us(call)
        ratios = ", ".join(f"{took / floor:.2f} x {key}" for key, floor in floors.items())
        report(name, took, note=ratios)


def splits() -> None:
    """One trajectory per row, 9 leaves, against torchrl."""
    from torchrl.collectors.utils import split_trajectories as peer

    rows = 65_536
    full = trajectories(lengths_of(rows, 399))
    wanted = ["observation", "action", "is_init", "next", keys.TRAJ_IDS, keys.TRAJ_STEP]
    batch = full.select(*wanted)
    batch.names = None
    leaves = len(list(batch.keys(include_nested=True, leaves_only=True)))
    print(f"{rows:,} steps, {len(Segments.of(batch))} trajectories, {leaves} leaves")

    def fresh() -> TensorDict:
        return batch.clone(False).set("is_init", batch["is_init"].clone())  # nothing kept

    cost = median_us(fresh, 11)
    for name, arguments in (("padded", {}), ("nested", {"as_nested": True})):
        ours = median_us(lambda a=arguments: split_trajectories(fresh(), **a), 21) - cost
        theirs = median_us(lambda a=arguments: peer(fresh(), **a), 11) - cost
        report(f"split {name}", ours, theirs)


def steps() -> None:
    """One step of time, against torchrl."""
    from torchrl.envs.utils import step_mdp as peer

    step = trajectories([8])
    ours, theirs = median_us(lambda: step_mdp(step), 2001), median_us(lambda: peer(step), 2001)
    print(f"step_mdp, {len(list(step.keys(True, True)))} leaves")
    report("step_mdp", ours, theirs)


if __name__ == "__main__":
    with session():
        torch.manual_seed(0)
        segments()
        splits()
        steps()
