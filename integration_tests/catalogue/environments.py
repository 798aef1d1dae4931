"""Environments whose steps every transform can be tried on, played in the same way each time."""

from __future__ import annotations

import torch

from rl_envs.testing import ScriptedEnv
from rl_specs import Binary, Bounded, Composite, Unbounded

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated")]


class PicturesEnv(ScriptedEnv):
    """Shows an image, a vector of doubles, and its own numbers: (episode, step)."""

    def __init__(self, first_episode=0, batch_size=()):
        super().__init__(ENDINGS, batch_size, first_episode)
        rows = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (*rows, 6, 7, 3), dtype=torch.uint8),
            image=Bounded(0.0, 1.0, (*rows, 3, 6, 7)),
            speed=Unbounded((*rows, 1), dtype=torch.float64),
            observation=Unbounded((*rows, 2)),
            numbers=Bounded(0.0, 1e3, (*rows, 2)),
            is_init=Binary(shape=(*rows, 1), dtype=torch.bool),
            shape=rows,
        )

    def _show(self):
        seen = torch.stack([self._episode, self._count], -1).float()
        shape = (*self.batch_size, 6, 7, 3)
        ramp = torch.arange(6 * 7 * 3).reshape(6, 7, 3)
        shift = (self._episode * 7 + self._count * 3).reshape(*self.batch_size, 1, 1, 1)
        pixels = ((ramp + shift) % 256).to(torch.uint8).expand(shape)
        root = self.observation_spec.zero()
        root["pixels"], root["image"] = pixels, pixels.movedim(-1, -3) / 255
        root["numbers"], root["is_init"] = seen.flip(-1), (self._count == 0).unsqueeze(-1)
        root["observation"], root["speed"] = seen, seen.double().sum(-1, keepdim=True)
        return root


def played(env, steps=14):
    """Steps in which rows end at different times and are reset one by one."""
    actions = torch.Generator().manual_seed(0)

    def act(root):
        choice = torch.randint(2, env.batch_size, generator=actions)
        return root.set("action", torch.nn.functional.one_hot(choice, 2).bool())

    return env.rollout(steps, act, break_when_any_done=False)


class LivesEnv(PicturesEnv):
    """Shows how many lives are left, too, and which actions are allowed: after odd steps not 0."""

    def __init__(self, first_episode=0, batch_size=()):
        super().__init__(first_episode, batch_size)
        rows = self.batch_size
        spec = self.observation_spec.clone()
        spec.set("lives", Unbounded((*rows, 1), dtype=torch.int64))
        spec.set("action_mask", Binary(shape=(*rows, 2), dtype=torch.bool))
        self.observation_spec = spec

    def _show(self):
        root = super()._show()
        allowed = torch.ones(*self.batch_size, 2, dtype=torch.bool)
        allowed[..., 0] = self._count % 2 == 0
        root["lives"] = (3 - self._count // 2).unsqueeze(-1)
        return root.set("action_mask", allowed)


def allowed_steps(env, steps=14):
    """Steps whose first choice is taken where it is allowed, or the other one."""

    def act(root):
        first = root["action_mask"][..., 0]
        return root.set("action", torch.stack([first, ~first], -1))

    return env.rollout(steps, act, break_when_any_done=False)
