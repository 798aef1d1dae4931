"""The linear recurrence and generalised advantages on one GPU, compared with torchrl.

Run with `nox -s "bench(rl-value)"` if there is a CUDA device. Durations are medians of synchronised
calls with the host's share; `device` is of the kernels alone.
Bandwidth counts every byte that must be read or written once. Goals stand after the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Callable

import torch
from bench import medians_us, report, session
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import rl_value

warnings.filterwarnings("ignore")

DEVICE = torch.device("cuda")
GAMMA, LMBDA = 0.99, 0.95
PEAKS = {"H200": 4.8e12, "H100": 3.35e12}  # bytes per second, as their maker says
Call = Callable[[], object]


def call_us(call: Call, repeats: int) -> float:
    """Median duration of synchronised calls."""

    def run() -> None:
        call()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    return medians_us(repeats, run, warm_up=5)[0]


def device_us(call: Call) -> float:
    """Time that the kernels of one call ran."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages())


def steps_of(rows: int, episode: int) -> dict[str, Tensor]:
    """Rewards, values and flags ``[rows, 1]`` of episodes near a length, some truncated."""
    done = torch.rand(rows, 1, device=DEVICE) < 1 / episode
    done[-1] = True
    return {
        "reward": torch.randn(rows, 1, device=DEVICE),
        "value": torch.randn(rows, 1, device=DEVICE),
        "next_value": torch.randn(rows, 1, device=DEVICE),
        "terminated": done & (torch.rand(rows, 1, device=DEVICE) < 0.5),
        "done": done,
    }


def scan(rows: int, episode: int, repeats: int) -> None:
    """The kernel alone: reads a and b, writes y."""
    from rl_value.scan.triton.linear_scan import linear_scan

    a, b = torch.full((rows,), GAMMA * LMBDA, device=DEVICE), torch.randn(rows, device=DEVICE)
    a[torch.rand(rows, device=DEVICE) < 1 / episode] = 0
    call = lambda: linear_scan(a, b)  # noqa: E731 - one line to be timed
    took, busy = call_us(call, repeats), device_us(call)
    rate = 12 * rows / (busy * 1e-6)
    note = f"device {busy:,.1f} us, {rate / 1e12:.2f} TB/s"
    card = torch.cuda.get_device_name()
    if peak := next((peak for name, peak in PEAKS.items() if name in card), None):
        note += f", {rate / peak:5.1%} of {peak / 1e12}"
    report(f"linear_scan, {rows:,} steps, episodes near {episode:,}", took, note=note)


def advantages(rows: int, episode: int, repeats: int) -> None:
    """The whole estimate on flat rows, compared with torchrl's on the same rows."""
    given = steps_of(rows, episode)
    mine = lambda: rl_value.gae(**given, gamma=GAMMA, lmbda=LMBDA)  # noqa: E731 - to be timed
    took, busy = call_us(mine, repeats), device_us(mine)
    goal = ", goal at most 25 us a call" if rows <= 2**18 else ""
    note = f"device {busy:,.1f} us{goal}"
    if importlib.util.find_spec("torchrl") is None:
        report(f"gae, {rows:,} steps", took, note=note)
        return
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate as peer

    ordered = (given["value"], given["next_value"], given["reward"])
    flags = given["done"], given["terminated"]
    theirs = lambda: peer(GAMMA, LMBDA, *ordered, *flags)  # noqa: E731 - to be timed
    try:
        other = call_us(theirs, max(5, repeats // 5))
    except Exception as error:  # out of memory on long rows is a line of the table
        report(f"gae, {rows:,} steps", took, note=note)
        print(f"    torchrl, vec does not run: {type(error).__name__}: {str(error)[:80]}")
        return
    report(f"gae, {rows:,} steps", took, other, note=f"goal at least 5; {note}")
    error = (mine()[0] - theirs()[0]).abs().max() / mine()[0].abs().max()
    print(f"    largest difference {float(error):.1e} of the largest advantage")


def main(repeats: int) -> None:
    """Print every table."""
    if not torch.cuda.is_available():
        print("G10: not measured: no CUDA device")
        return
    torch.manual_seed(0)
    print(f"G10, {torch.cuda.get_device_name()}")
    for rows in (2**13, 2**16, 2**18, 2**20, 2**24, 2**26):
        for episode in (200, 10**9):  # the second is one trajectory of all rows
            scan(rows, episode, repeats)
    print("  goal at least 60 % of the bandwidth from 16 M steps on")
    for rows in (2**13, 2**16, 2**18, 2**20):
        advantages(rows, 200, repeats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100, help="calls after a median")
    with session(parser) as given:
        main(given.repeats)
