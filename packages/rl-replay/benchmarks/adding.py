"""Steps added one by one from a plain loop over a gymnasium environment.

    nox -s "bench(rl-replay)"

What most people write first: `env.step`, then one `add` of what it returned, a dict of arrays and
numbers. "add" is that call alone, for steps of CartPole that were taken before; "step and add" is
the whole loop, random actions included. The numpy ring is written by hand: an array for each leaf,
and a place that moves on; it checks nothing and finds no trajectories. Two tables compare a
dict with the TensorDict of the same leaves, finished before. The last one stores 3-step rows, by
an `add` for each step or by an `extend` of a list of steps. One process, one thread, medians in
microseconds, contenders take turns.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from bench import medians_us, session, table
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from rl_transforms import MultiStepTransform

ROWS, STEPS, LISTED = 100_000, 500, 50
Step = dict[str, Any]


def walk(env: gymnasium.Env[Any, Any]) -> Callable[[], Step]:
    """Takes one random step, and begins anew where an episode has ended."""
    seen, _ = env.reset(seed=0)

    def step() -> Step:
        nonlocal seen
        before, action = seen, env.action_space.sample()
        seen, reward, terminated, truncated, _ = env.step(action)
        found = {"observation": before, "action": action, "next_observation": seen}
        found |= {"reward": reward, "terminated": terminated, "truncated": truncated}
        if terminated or truncated:
            seen, _ = env.reset()
        return found

    return step


def as_row(step: Step) -> Step:
    """The same step with what it produced under "next"."""
    root = {"observation": step["observation"], "action": step["action"]}
    after = {"observation": step["next_observation"]}
    after |= {name: step[name] for name in ("reward", "terminated", "truncated")}
    return {**root, "next": {**after, "done": step["terminated"] or step["truncated"]}}


def numpy_ring(example: Step) -> Callable[[Step], None]:
    """A ring by hand: an array for each leaf."""
    arrays = {
        name: np.zeros((ROWS, *np.shape(value)), np.asarray(value).dtype)
        for name, value in example.items()
    }
    place = 0

    def add(step: Step) -> None:
        nonlocal place
        for name, array in arrays.items():
            array[place] = step[name]
        place = (place + 1) % ROWS

    return add


def cpprb_buffer(example: Step) -> Callable[[Step], object]:
    """The other peer's buffer, of the same leaves."""
    import cpprb

    leaves = {
        name: {"shape": np.shape(value) or 1, "dtype": np.asarray(value).dtype}
        for name, value in example.items()
    }
    buffer = cpprb.ReplayBuffer(ROWS, leaves)
    return lambda step: buffer.add(**step)


def contenders(example: Step) -> dict[str, Callable[[Step], object]]:
    """What adds one step, by name."""
    found: dict[str, Callable[[Step], object]] = {"numpy ring, by hand": numpy_ring(example)}
    try:
        found["cpprb"] = cpprb_buffer(example)
    except ImportError:
        print("cpprb is not installed: its lines are left out")
    try:
        from torchrl.data import LazyTensorStorage as PeerStorage
        from torchrl.data import TensorDictReplayBuffer as PeerBuffer

        peer = PeerBuffer(storage=PeerStorage(ROWS))
        found["torchrl, of a TensorDict"] = lambda step: peer.add(TensorDict(as_row(step)))
    except ImportError:
        print("torchrl is not installed: its line is left out")
    flat = ReplayBuffer(storage=LazyTensorStorage(ROWS))
    lossless = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS, lossless=True))
    ours = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS))
    found["rl-replay, a flat dict"] = flat.add
    found["rl-replay, lossless"] = lambda step: lossless.add(as_row(step))
    found["rl-replay"] = lambda step: ours.add(as_row(step))
    return found


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    step = walk(gymnasium.make("CartPole-v1"))
    taken = [step() for _ in range(STEPS)]
    adds = contenders(taken[0])
    calls = []
    for add in adds.values():
        steps = itertools.cycle(taken)
        calls.append(lambda add=add, steps=steps: add(next(steps)))
    found = medians_us(40, *calls, burst=50, shuffle=True)
    table("add one step", dict(zip(adds, found, strict=True)), "rl-replay")
    loops = []
    for add in adds.values():
        take = walk(gymnasium.make("CartPole-v1"))
        loops.append(lambda add=add, take=take: add(take()))
    found = medians_us(40, *loops, burst=50, shuffle=True)
    table("step CartPole and add", dict(zip(adds, found, strict=True)), "rl-replay")
    add_again(taken[0])
    extend_many()
    add_to_n_step_rows(taken[:LISTED])


def add_again(step: Step) -> None:
    """The same step in one buffer, as a dict and as a TensorDict."""
    plain, finished = (TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS)) for _ in range(2))
    row = as_row(step)
    one = TensorDict(row)
    plain.add(row)
    finished.add(one)
    found = medians_us(
        40, lambda: plain.add(row), lambda: finished.add(one), burst=50, shuffle=True
    )
    table(
        "add one step again and again",
        {"a dict": found[0], "a TensorDict": found[1]},
        "a TensorDict",
    )


def extend_many() -> None:
    """A hundred rows a call, as a dict of arrays and as a TensorDict."""
    ours = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS))
    many = {"observation": np.ones((100, 4)), "action": np.zeros(100, np.int64)}
    many |= {"next": {"reward": np.ones(100), "done": np.zeros(100, bool)}}
    ours.extend(many)
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS))
    dense = {"reward": torch.ones(100, 1), "done": torch.zeros(100, 1, dtype=torch.bool)}
    root = {"observation": torch.rand(100, 4).double(), "action": torch.zeros(100).long()}
    batch = TensorDict({**root, "next": dense}, [100])
    found = medians_us(
        40, lambda: ours.extend(many), lambda: other.extend(batch), burst=20, shuffle=True
    )
    table("extend by 100 rows", {"a dict": found[0], "a TensorDict": found[1]}, "a TensorDict")


def add_to_n_step_rows(steps: Sequence[Step]) -> None:
    """Steps that a buffer combines, one by one and as a list."""
    rows = [as_row(step) for step in steps]
    single, listed = (
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(ROWS), transform=MultiStepTransform(n_steps=3, gamma=0.99)
        )
        for _ in range(2)
    )

    def add_all() -> None:
        for row in rows:
            single.add(row)

    found = medians_us(10, add_all, lambda: listed.extend(rows), burst=2, shuffle=True)
    names = ["an add for each", "an extend of a list"]
    each = [time / LISTED for time in found]
    table(f"{LISTED} steps as 3-step rows, a step", dict(zip(names, each, strict=True)), names[1])


if __name__ == "__main__":
    with session():
        main()
