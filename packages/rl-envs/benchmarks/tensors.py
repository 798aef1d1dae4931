"""Pendulums on tensors alone: a rollout compared with torchrl's and a loop by hand.

Run with `nox -s "bench(rl-envs)"`. torchrl's pendulum keeps its state in the tensordict and never
ends; ours and the loop truncate after 200 steps and reset rows. Medians of CPU time per step.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import torch
from bench import medians_us, report, session
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_envs import Pendulums

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
STEPS = 100
NET = nn.Linear(3, 1)


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
        calls = (ours(num_envs), torchrls(num_envs), lambda n=num_envs: play_by_hand(n))
        times = medians_us(7, *calls, clock=time.process_time, warm_up=1)
        took, peer, hand = (found / STEPS for found in times)
        report(f"a step of {num_envs} pendulums", took, peer)
        report(f"a step of {num_envs} pendulums, by hand", hand, note=f"{hand / took:.2f} x")


if __name__ == "__main__":
    with session():
        main()
