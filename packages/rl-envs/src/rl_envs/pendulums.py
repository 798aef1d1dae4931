"""Pendulums as tensor operations: an environment on the device of its policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.env import EnvBase
from rl_specs import Bounded
from rl_tensordict import build
from rl_tensordict.arguments import check_whole

GRAVITY, STEP_S, MAX_SPEED, MAX_TORQUE = 10.0, 0.05, 8.0, 2.0


class Pendulums(EnvBase):
    """Gymnasium's `Pendulum-v1` as tensor operations: a batch of them, on any device.

    No step depends on a value that the host has to read: rows are reset by `torch.where` after
    every step, whether or not one is done. So a rollout never synchronises with the device.

    A pendulum with angle a (0 is upright), speed v and torque u continues as

        v' = v + (15 sin(a) + 3 u) 0.05,  clipped to [-8, 8];  a' = a + 0.05 v'

    and is rewarded with -(a^2 + 0.1 v^2 + 0.001 u^2), a within [-pi, pi]. Observation float32
    `[N, 3]`: cos(a), sin(a), v. Action float32 `[N, 1]`: u.

    Args:
        num_envs: N.
        max_steps: after how many steps an episode is truncated.
        device: of state and data.

    Example:
        >>> env = Pendulums(4096, max_steps=100)
        >>> _ = env.set_seed(0)
        >>> env.rollout(5, break_when_any_done=False)["observation"].shape
        torch.Size([4096, 5, 3])
    """

    check_values = False  # reading values synchronises with the device
    waits_for_device = False

    def __init__(
        self, num_envs: int, *, max_steps: int = 200, device: torch.device | str | None = None
    ) -> None:
        check_whole("num_envs", num_envs, 1)
        check_whole("max_steps", max_steps, 1)
        super().__init__(device=device, batch_size=(num_envs,))
        self.max_steps = max_steps
        most = torch.tensor([1.0, 1.0, MAX_SPEED], device=self.device).expand(num_envs, 3)
        self.observation_spec = Bounded(-most, most, device=self.device)
        self.action_spec = Bounded(-MAX_TORQUE, MAX_TORQUE, (num_envs, 1), device=self.device)
        self._generator = torch.Generator(self.device)
        self._generator.seed()
        self._angle, self._speed, self._count = torch.zeros(3, num_envs, 1, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        lots = torch.rand(2, *self._angle.shape, generator=self._generator, device=self.device)
        angle, speed = (2 * lots[0] - 1) * math.pi, 2 * lots[1] - 1
        if tensordict is None:
            self._angle, self._speed, self._count = angle, speed, torch.zeros_like(angle)
            return self._show()
        mask = tensordict.get("_reset")
        self._angle = torch.where(mask, angle, self._angle)
        self._speed = torch.where(mask, speed, self._speed)
        self._count = torch.where(mask, 0.0, self._count)
        return self._show()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        torque = tensordict.get("action").clamp(-MAX_TORQUE, MAX_TORQUE)
        turned = torch.remainder(self._angle + math.pi, 2 * math.pi) - math.pi
        cost = turned**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        pull = 1.5 * GRAVITY * self._angle.sin() + 3 * torque
        self._speed = (self._speed + pull * STEP_S).clamp(-MAX_SPEED, MAX_SPEED)
        self._angle = self._angle + self._speed * STEP_S
        self._count = self._count + 1
        after = self._show()
        after.set("reward", -cost)
        after.set("truncated", self._count >= self.max_steps)
        return after

    def _show(self) -> TensorDictBase:
        seen: Tensor = torch.cat([self._angle.cos(), self._angle.sin(), self._speed], -1)
        return build({"observation": seen}, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def _to(self, device: torch.device) -> None:
        rows = (self._angle, self._speed, self._count)
        self._angle, self._speed, self._count = (row.to(device) for row in rows)
        # a generator cannot be moved: a new one starts from the same seed
        self._generator = torch.Generator(device).manual_seed(self._generator.initial_seed())

    def _get_state(self) -> dict[str, Any]:
        rows = {"angle": self._angle, "speed": self._speed, "count": self._count}
        saved = {name: row.clone() for name, row in rows.items()}
        return {**saved, "generator": self._generator.get_state()}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        rows = (state[name].to(self.device).clone() for name in ("angle", "speed", "count"))
        self._angle, self._speed, self._count = rows
        self._generator.set_state(state["generator"])
