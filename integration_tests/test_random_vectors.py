"""Vectors of Gymnasium in every autoreset mode, with transforms and a collector drawn at random.

Observations are (row, episode, step), so a list says what each row must have played: no episode is
skipped, none is mixed with another, and what transforms carry is that of the episode.
"""
# ruff: noqa: D102, D103 - methods are Gymnasium's; a test's name says what it promises

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_collect import Collector
from rl_envs import EnvBase, GymEnv, GymVectorEnv, SerialEnv, TransformedEnv
from rl_layout import check_layout
from rl_transforms import CatFrames, FrameSkip, InitTracker, RewardSum, StepCounter

SEEN = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ENDS = ("terminated", "truncated")

scripts = st.lists(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from(ENDS)), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)
places = ["serial", "inside", *AutoresetMode, "native next step", "native same step"]
trackers = st.sets(st.sampled_from([RewardSum, StepCounter, InitTracker, CatFrames]))


class Row(gymnasium.Env[Any, Any]):
    """Shows (row, episode, step); each step is worth its number."""

    observation_space, action_space = SEEN, spaces.Discrete(2)

    def __init__(self, row: int, script: list[tuple[int, str]]) -> None:
        self.row, self.script, self.episode = row, script, -1

    def seen(self) -> Any:
        return np.array([self.row, self.episode, self.count], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        length, end = self.script[self.episode % len(self.script)]
        over = self.count == length
        flags = over and end == "terminated", over and end == "truncated"
        return self.seen(), float(self.count), *flags, {}


class Native(VectorEnv[Any, Any, Any]):
    """The same rows as a vector of its own, which resets them in the same step or the next one."""

    single_observation_space, single_action_space = SEEN, spaces.Discrete(2)

    def __init__(self, rows: list[Row], mode: AutoresetMode) -> None:
        self.rows, self.num_envs, self.metadata = rows, len(rows), {"autoreset_mode": mode}
        self.over = np.zeros(len(rows), bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.over[:] = False
        return np.stack([row.reset()[0] for row in self.rows]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        found = [
            (row.reset()[0], 0.0, False, False) if over else row.step(action)[:4]
            for row, over, action in zip(self.rows, self.over, actions, strict=True)
        ]
        seen, reward, *flags = (np.array(part) for part in zip(*found, strict=True))
        ended, info = flags[0] | flags[1], {}
        if self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            self.over = ended
        elif ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                final[i], seen[i] = seen[i].copy(), self.rows[i].reset()[0]
            info = {"final_obs": final, "_final_obs": ended}
        return seen, reward, *flags, info


def made(place: Any, script: list[Any], kinds: set[Any]) -> tuple[EnvBase, int]:
    """An environment over these rows, and how many frames a step of it takes."""
    rows, skip = [Row(i, one) for i, one in enumerate(script)], 1
    makers = [lambda row=row: GymEnv(row) for row in rows]
    if place == "serial":
        env: EnvBase = SerialEnv(len(rows), makers)
    elif place == "inside":  # frames are skipped around rows that have transforms already
        around = [lambda make=make: TransformedEnv(make(), InitTracker()) for make in makers]
        env, skip = TransformedEnv(SerialEnv(len(rows), around), FrameSkip(2)), 2
    elif isinstance(place, AutoresetMode):
        vector = SyncVectorEnv([lambda row=row: row for row in rows], autoreset_mode=place)
        env = GymVectorEnv(vector)
    else:
        is_next = place == "native next step"
        mode = AutoresetMode.NEXT_STEP if is_next else AutoresetMode.SAME_STEP
        env = GymVectorEnv(Native(rows, mode))
    chosen = [
        CatFrames(2, -1, ["observation"], ["stacked"]) if kind is CatFrames else kind()
        for kind in sorted(kinds, key=str)
    ]
    return (TransformedEnv(env, *chosen) if chosen else env), skip


def expected(row: int, script: list[tuple[int, str]], skip: int) -> Iterator[dict[str, Any]]:
    """The steps of a row from its first episode on."""
    for episode in itertools.count():
        length, end = script[episode % len(script)]
        total, before = 0.0, 0
        for number, at in enumerate(range(0, length, skip)):
            to = min(at + skip, length)
            gained = float(sum(range(at + 1, to + 1)))
            over = to == length
            yield {
                "observation": [row, episode, at],
                ("next", "observation"): [row, episode, to],
                ("next", "reward"): [gained],
                ("next", "terminated"): [over and end == "terminated"],
                ("next", "truncated"): [over and end == "truncated"],
                ("next", "done"): [over],
                "is_init": [number == 0],
                ("collector", "traj_step"): number,
                "step_count": [number],
                ("next", "step_count"): [number + 1],
                "episode_reward": [total],
                ("next", "episode_reward"): [total + gained],
                "stacked": [row, episode, before, row, episode, at],
                ("next", "stacked"): [row, episode, at, row, episode, to],
            }
            total, before = total + gained, at


@settings(max_examples=60, deadline=None)
@given(scripts, st.sampled_from(places), trackers, st.integers(1, 7))
def test_rows_of_every_vector_are_those_of_their_episodes(script, place, kinds, num_steps):
    env, skip = made(place, script, kinds)
    frames = num_steps * len(script)
    with Collector(env, frames_per_batch=frames, total_frames=5 * frames) as collector:
        batches = list(collector)
    assert all(check_layout(batch).ok for batch in batches)
    batch = torch.cat(batches, -1)
    for row, own in enumerate(script):
        wanted = list(itertools.islice(expected(row, own, skip), batch.shape[1]))
        first = int(batch["observation"][row, 0, 1])  # a reset may have shown the data's form
        assert first == 0
        for key in wanted[0]:
            if key in batch.keys(include_nested=True):
                assert batch[key][row].tolist() == [step[key] for step in wanted], key
