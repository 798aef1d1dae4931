"""The scan of `gae` alone: against a doubling scan, and over sizes and spreads of episode lengths.

Run with `nox -s "bench(rl-value)"` on a machine of your own. Medians in one process; after each
figure is the bar that it is held to.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings

import bench
import torch
from torch import Tensor

from rl_layout.testing import trajectories
from rl_value import gae

warnings.filterwarnings("ignore")
GAMMA, LMBDA = 0.99, 0.95
clock = time.perf_counter


def doubling(weight: Tensor, delta: Tensor, longest: int) -> Tensor:
    """The segmented doubling scan that the floor was measured with."""
    seen = 1
    while seen < longest:
        more = torch.addcmul(delta[:-seen], weight[:-seen], delta[seen:])
        delta = torch.cat([more, delta[-seen:]])
        weight = torch.cat([weight[:-seen] * weight[seen:], weight[-seen:]])
        seen *= 2
    return delta


def scan() -> None:
    """`gae` on flat steps with the values given, alongside the floor."""
    batch = trajectories([200] * 327 + [136])
    reward, value, ahead = torch.randn(3, 65_536, 1)
    done, terminated = batch["next", "done"], batch["next", "terminated"]
    weight = torch.full((65_536,), GAMMA * LMBDA).masked_fill(done[:, 0], 0)

    def ours() -> object:
        return gae(reward, value, ahead, terminated, done, gamma=GAMMA, lmbda=LMBDA)

    calls = (ours, lambda: doubling(weight, reward[:, 0], 256))
    (took, floor), (first, _) = bench.in_blocks_us(12, *calls, clock=clock)
    print("gae on 65,536 flat steps, episodes of 200, values given")
    print(f"  {took:41.0f} us   (bar 1,000 us where a doubling scan takes 300 to 600)")
    print(f"  first call after other work{first:14.0f} us")
    print(f"  doubling scan of the same steps{floor:10.0f} us   {took / floor:.2f} of it")


def curves(largest: int) -> None:
    """Nanoseconds a step of `gae`, over sizes and over spreads of episode lengths."""
    print("gae, ns a step")

    def each_ns(lengths: Tensor) -> float:
        size = int(lengths.sum())
        done = torch.zeros(size, 1, dtype=torch.bool)
        done[lengths.cumsum(0) - 1] = True
        reward, value, ahead = torch.randn(3, size, 1)
        call = (lambda: gae(reward, value, ahead, done, done, gamma=GAMMA, lmbda=LMBDA),)
        return bench.medians_us(max(3, 2_000_000 // size), *call, clock=clock)[0] * 1e3 / size

    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= largest]
    found = [each_ns(torch.full((size // 200,), 200)) for size in sizes]
    print("  steps   " + "".join(f"{size:>14,}" for size in sizes))
    print("  ns      " + "".join(f"{value:14.1f}" for value in found))
    if 10_000_000 in sizes:
        print(f"  10,000,000 over 100,000: {found[-1] / found[1]:.2f} (bar 4)")
    spreads = {
        "1 each": torch.ones(100_000, dtype=torch.int64),
        "200 each": torch.full((500,), 200),
        "1 to 399": torch.randint(1, 400, (500,)),
        "geometric": torch.empty(500).geometric_(1 / 200).long().clamp(min=1),
        "one long": torch.cat([torch.tensor([99_000]), torch.full((1_000,), 1)]),
        "one alone": torch.tensor([100_000]),
    }
    values = {name: each_ns(lengths) for name, lengths in spreads.items()}
    for name, value in values.items():
        print(f"  episodes {name:12}{value:10.1f}")
    print(f"  largest over smallest: {max(values.values()) / min(values.values()):.2f} (bar 2)")


def main() -> None:
    """Read the command line and print every figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="leave the largest sizes out")
    hint = "count the processor time of one thread, for a machine that others use too"
    parser.add_argument("--cpu-time", action="store_true", help=hint)
    with bench.session(parser) as given:
        if given.cpu_time:
            global clock
            clock = time.thread_time
            torch.set_num_threads(1)
        torch.manual_seed(0)
        random.seed(0)
        scan()
        curves(1_000_000 if given.quick else 10_000_000)


if __name__ == "__main__":
    main()
