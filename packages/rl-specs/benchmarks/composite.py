"""Time `Composite.rand` and `Composite.is_in` on ten leaves: the peer, ours, and by hand.

Run with `nox -s "bench(rl-specs)"`. All three run in turns in one process, and the printed times
are medians, so a busy machine slows them alike.
"""

from __future__ import annotations

from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict
from torchrl import data as peer

import rl_specs

RUNS = 2000


def composite(library: Any) -> Any:
    """Describe one step of an environment with either library's classes."""
    return library.Composite(
        observation=library.Unbounded((17,)),
        pixels=library.Bounded(0, 255, (3, 16, 16), dtype=torch.uint8),
        velocity=library.Bounded(-1, 1, (6,)),
        action=library.Categorical(5),
        move=library.OneHot(4),
        buttons=library.MultiCategorical([2, 3]),
        flags=library.Binary(3),
        reward=library.Unbounded((1,)),
        done=library.Categorical(2, (1,), dtype=torch.bool),
        steps=library.Unbounded((1,), dtype=torch.int64),
    )


NVEC = torch.tensor([2.0, 3.0])


def rand_by_hand() -> TensorDict:
    """Draw the same step with nothing but torch: the floor of `rand`."""
    move = torch.randint(4, (1,))
    return TensorDict(
        {
            "observation": torch.randn(17),
            "pixels": torch.empty((3, 16, 16), dtype=torch.uint8).random_(0, 256),
            "velocity": torch.empty(6).uniform_(-1, 1),
            "action": torch.randint(5, ()),
            "move": torch.zeros(4, dtype=torch.bool).scatter_(0, move, True),
            "buttons": (torch.rand(2) * NVEC).long(),
            "flags": torch.randint(2, (3,), dtype=torch.int8),
            "reward": torch.randn(1),
            "done": torch.randint(2, (1,), dtype=torch.bool),
            "steps": torch.empty(1, dtype=torch.int64).random_(-(2**63), None),
        },
        [],
    )


def is_in_by_hand(step: TensorDict) -> bool:
    """Check the values alone, without shapes and dtypes: the floor of `is_in`."""
    low, high = torch.aminmax(step["velocity"])
    columns = step["buttons"]
    return bool(
        0 <= step["action"] < 5
        and low >= -1
        and high <= 1
        and step["move"].sum() == 1
        and ((columns >= 0) & (columns < NVEC)).all()
        and (step["flags"] <= 1).all()
    )


def main() -> None:
    """Print both comparisons."""
    theirs, ours = composite(peer), composite(rl_specs)
    step = ours.rand()
    assert ours.is_in(step)
    assert theirs.is_in(step)
    assert is_in_by_hand(step)
    rows = {
        "rand": (ours.rand, theirs.rand, rand_by_hand),
        "is_in": (
            lambda: ours.is_in(step),
            lambda: theirs.is_in(step),
            lambda: is_in_by_hand(step),
        ),
    }
    for name, calls in rows.items():
        took, peer_took, hand = medians_us(RUNS, *calls)
        report(f"{name} of ten leaves", took, peer_took)
        report(f"{name} of ten leaves, by hand", hand)


if __name__ == "__main__":
    with session():
        main()
