"""Time a forest that takes 20 rollouts of 20 steps, and gives their tree.

Run with `nox -s "bench(rl-trees)"`. All rollouts begin at one observation and have no other in
common. Forests are new each time, so the memory for a million steps is part of the figure.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from bench import medians_us, report, session
from tensordict import TensorDict
from torchrl.data import MCTSForest as TheirForest

from rl_trees import MCTSForest

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)  # the peer logs every storage
COUNT, STEPS = 20, 20


def rollouts() -> TensorDict:
    """Rollouts `[20, 20]`."""
    seen = torch.randn(COUNT, STEPS + 1, 4)
    seen[:, 0] = 0
    after = {
        "observation": seen[:, 1:],
        "reward": torch.randn(COUNT, STEPS, 1),
        "done": torch.zeros(COUNT, STEPS, 1, dtype=torch.bool),
    }
    actions = torch.randint(3, (COUNT, STEPS))
    data = {"observation": seen[:, :-1], "action": actions, "next": after}
    return TensorDict(data, [COUNT, STEPS])


def main() -> None:
    """All figures."""
    torch.manual_seed(0)
    data = rollouts()
    flat = data.reshape(-1)

    def at_once(cls: Any) -> Any:
        forest = cls(max_size=1000)
        forest.extend(flat)
        return forest

    def one_by_one(cls: Any) -> Any:
        forest = cls(max_size=1000)
        for rollout in data:
            forest.extend(rollout)
        return forest

    with session():
        for name, call in (("one extend", at_once), ("20 extends", one_by_one)):
            both = [lambda cls=cls, call=call: call(cls) for cls in (MCTSForest, TheirForest)]
            report(f"20 x 20 steps in {name}", *medians_us(15, *both))
        forests = [at_once(MCTSForest), at_once(TheirForest)]
        trees = [lambda f=f: f.get_tree(data[0, 0]) for f in forests]
        report("the tree of 20 x 20 steps", *medians_us(15, *trees))


if __name__ == "__main__":
    main()
