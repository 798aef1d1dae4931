"""Pendulums on tensors alone: a rollout beside torchrl's and beside a loop written by hand.

Run with `nox -s "bench(rl-envs)"`. torchrl's pendulum keeps its state in the tensordict and never
ends; ours and the loop truncate after 200 steps and reset rows. Medians of CPU time per step.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_envs import Pendulums

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
STEPS = 100
NET = nn.Linear(3, 1)


def medians_us(calls: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Median CPU time of one step of each call, in turns, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            times[name].append(time.process_time() - begin)
    return {name: statistics.median(found[1:]) * 1e6 / STEPS for name, found in times.items()}


def ours(num_envs: int) -> Callable[[], object]:
    """A rollout of `Pendulums`."""
    env = Pendulums(num_envs)
    policy = TensorDictModule(NET, ["observation"], ["action"])
    return lambda: env.rollout(STEPS, policy, break_when_any_done=False)


def torchrls(num_envs: int) -> Callable[[], object]:
    """A rollout of torchrl's pendulum."""
    from torchrl.envs.custom.pendulum import PendulumEnv

    env = PendulumEnv()
    start = env.gen_params(batch_size=[num_envs])

    def act(angle: Tensor, speed: Tensor) -> Tensor:
        return NET(torch.stack([angle.cos(), angle.sin(), speed], -1))

    policy = TensorDictModule(act, ["th", "thdot"], ["action"])
    return lambda: env.rollout(
        STEPS, policy, tensordict=env.reset(start), auto_reset=False, break_when_any_done=False
    )


@torch.no_grad()
def play_by_hand(num_envs: int) -> list[Tensor]:
    """A loop that stores every key a rollout does."""
    angle = (2 * torch.rand(num_envs, 1) - 1) * math.pi
    speed, count = 2 * torch.rand(num_envs, 1) - 1, torch.zeros(num_envs, 1)
    kept: list[list[Tensor]] = []
    seen = torch.cat([angle.cos(), angle.sin(), speed], -1)
    for _ in range(STEPS):
        action = NET(seen)
        torque = action.clamp(-2, 2)
        turned = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        reward = -(turned**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = (speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        angle, count = angle + speed * 0.05, count + 1
        after, over = torch.cat([angle.cos(), angle.sin(), speed], -1), count >= 200
        flags = [torch.zeros_like(over), over, over]
        kept.append([seen, action, *[torch.zeros_like(over)] * 3, after, reward, *flags])
        lots = 2 * torch.rand(2, num_envs, 1) - 1
        angle = torch.where(over, lots[0] * math.pi, angle)
        speed, count = torch.where(over, lots[1], speed), torch.where(over, 0.0, count)
        seen = torch.cat([angle.cos(), angle.sin(), speed], -1)
    return [torch.stack(leaf, 1) for leaf in zip(*kept, strict=True)]


def main() -> None:
    """Print what a step of a few and of many pendulums takes."""
    for num_envs in (64, 4096):
        found = medians_us(
            {
                "ours": ours(num_envs),
                "torchrl": torchrls(num_envs),
                "by hand": lambda num_envs=num_envs: play_by_hand(num_envs),
            }
        )
        print(f"{num_envs} pendulums, a step: ours {found['ours']:.0f} us", end="")
        for name in ("torchrl", "by hand"):
            print(f"; {name} {found[name] / found['ours']:.2f} times as long", end="")
        print()


if __name__ == "__main__":
    main()
