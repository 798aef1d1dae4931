"""Frames stored once come out as the stacks that the environment wrote, under any sampler."""

# ruff: noqa: D101, D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch

from rl_collect import Collector
from rl_envs import TransformedEnv
from rl_envs.testing import ScriptedEnv
from rl_replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from rl_specs import Bounded, Composite
from rl_transforms import CatFrames, InitTracker, MultiStepTransform, NextStateReconstructor

STACK, NEXT_STACK = "stacked_pixels", ("next", "stacked_pixels")
HISTORY_MISSING = ("collector", "history_missing")
NAMES = ("traj_ids", "traj_step")
ENDINGS = [(3, "terminated"), (9, "truncated"), (1, "terminated"), (14, "truncated")]


class FilmEnv(ScriptedEnv):
    def __init__(self, batch_size=(3,)):
        super().__init__(ENDINGS, batch_size)
        frames = Bounded(0, 255, (*self.batch_size, 1, 4, 5), dtype=torch.uint8)
        self.observation_spec = Composite(pixels=frames, shape=self.batch_size)

    def _show(self):
        root = self.observation_spec.zero()
        number = (self._episode * 19 + self._count * 7).reshape(*self.batch_size, 1, 1, 1)
        root["pixels"] = ((number + torch.arange(20).reshape(1, 4, 5)) % 256).to(torch.uint8)
        return root


def collected(num_batches=4):
    env = TransformedEnv(FilmEnv(), InitTracker()).append_transform(CatFrames(4, -3))
    collector = Collector(env, None, frames_per_batch=60, total_frames=60 * num_batches)
    return [batch.clone() for batch in collector]


def steps_of(batches):
    """Every step that was collected, by id and step."""
    flat = torch.cat([batch.reshape(-1) for batch in batches])
    place = zip(*(flat["collector", name].tolist() for name in NAMES), strict=True)
    return flat, {key: row for row, key in enumerate(place)}


def assert_as_written(sample, batches, held):
    """Stacks are those of the environment; where the buffer lacks a frame, the row is marked."""
    flat, rows = steps_of(batches)
    sample = sample.reshape(-1)
    place = list(zip(*(sample["collector", name].tolist() for name in NAMES), strict=True))
    gone = [any((i, s) not in held for s in range(max(step - 3, 0), step)) for i, step in place]
    assert sample[HISTORY_MISSING].tolist() == gone
    wanted, whole = flat[torch.tensor([rows[key] for key in place])], ~torch.tensor(gone)
    for key in (STACK, NEXT_STACK):
        assert sample[key].dtype == torch.uint8
        assert torch.equal(sample[key][whole], wanted[key][whole])


SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(num_slices=6, strict_length=False),
    "all slices": lambda: SliceSamplerWithoutReplacement(num_slices=6, strict_length=False),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("storage", ["plain", "lossless", "columns", "shared"])
def test_samples_hold_the_stacks_that_the_policy_saw(sampler, storage):
    batches, ndim = collected(), 2 if storage == "columns" else 1
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(150, ndim=ndim, lanes=1, lossless=storage == "lossless"),
        sampler=SAMPLERS[sampler](),
        transform=CatFrames(4, -3),
        batch_size=48,
        shared=storage == "shared",
    )
    for batch in batches:  # the last one overwrites what the ring holds
        buffer.extend(batch)
        for _ in range(3):
            assert_as_written(buffer.sample(), batches, steps_of([buffer[:]])[1])
    assert STACK not in buffer.storage.read(torch.tensor([0]))
    assert 0 < buffer[:][HISTORY_MISSING].sum() <= 9  # at the seam of each environment


def test_next_frames_that_are_not_stored_are_rebuilt_first():
    batches = collected()
    both = [NextStateReconstructor(["pixels"]), CatFrames(4, -3)]
    buffer = ReplayBuffer(storage=LazyTensorStorage(240), batch_size=80)
    for one in both:
        buffer.append_transform(one)
    for batch in batches:
        buffer.extend(batch.exclude(("next", "pixels")))
    sample = buffer.sample()
    there = sample[~sample["collector", "next_missing"]]
    assert_as_written(there, batches, steps_of(batches)[1])


def test_rows_of_several_steps_have_the_stack_at_their_next_frame():
    batches = collected()
    buffer = ReplayBuffer(storage=LazyTensorStorage(240), batch_size=80)
    buffer.append_transform(MultiStepTransform(3, 0.9))
    buffer.append_transform(CatFrames(4, -3))
    for batch in batches:
        buffer.extend(batch)
    sample, (flat, rows), (_, held) = buffer.sample(), steps_of(batches), steps_of([buffer[:]])
    ids, steps = (sample["collector", name].tolist() for name in NAMES)
    far = sample["next", "steps_to_next_obs"].flatten().tolist()
    reach = list(zip(ids, steps, far, strict=True))
    # what a row reaches across may not have been passed on to the buffer yet
    whole = torch.tensor([all((i, s + k) in held for k in range(1, m)) for i, s, m in reach])
    assert torch.equal(sample[HISTORY_MISSING], ~whole)
    last = torch.tensor([rows[i, s + m - 1] for i, s, m in reach])
    assert torch.equal(sample[NEXT_STACK][whole], flat[NEXT_STACK][last][whole])


@pytest.mark.parametrize("in_buffer", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
def test_stacks_behind_a_cut_of_the_collector_are_those_of_the_policy_or_marked(
    in_buffer, with_ids
):
    env = TransformedEnv(FilmEnv(), InitTracker()).append_transform(CatFrames(4, -3))
    collector = Collector(
        env, frames_per_batch=15, total_frames=60, set_truncated=True, track_traj_ids=with_ids
    )
    written = torch.cat(list(collector), -1)
    if in_buffer:
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(60, ndim=2), transform=CatFrames(4, -3), batch_size=60
        )
        buffer.extend(written)
        made = buffer[:].reshape(3, 20)
    else:
        made = CatFrames(4, -3)(written.exclude(STACK, NEXT_STACK))
    lost = made[HISTORY_MISSING]
    assert lost.any()
    assert not lost[..., 3::5].any()  # four steps of a piece hold all frames of the stack
    differs = [(made[key] != written[key]).flatten(2).any(-1) for key in (STACK, NEXT_STACK)]
    assert torch.equal(differs[0] | differs[1], lost)
