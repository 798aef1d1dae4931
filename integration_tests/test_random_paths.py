"""Any environment, collector, storage and sampler, drawn at random: every sampled step is genuine.

Observations carry (episode, step), so each row proves its next observation and its neighbours.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDictBase

from rl_collect import Collector
from rl_envs import EnvBase, SerialEnv
from rl_envs.testing import EpisodeStepEnv
from rl_layout import check_layout
from rl_replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

episodes = st.lists(
    st.tuples(st.integers(1, 17), st.sampled_from(["terminated", "truncated"])),
    min_size=1,
    max_size=4,
)
slicing = st.one_of(
    st.fixed_dictionaries({"slice_len": st.sampled_from([2, 3, 6])}),
    st.fixed_dictionaries({"num_slices": st.sampled_from([2, 3, 6])}),
)
samplers = st.one_of(
    st.builds(RandomSampler),
    st.builds(SamplerWithoutReplacement),
    slicing.map(lambda shape: SliceSampler(**shape)),
    slicing.map(lambda shape: SliceSampler(**shape, by="step")),
    slicing.map(lambda shape: SliceSampler(**shape, span=True)),
    slicing.map(lambda shape: SliceSamplerWithoutReplacement(**shape)),
)
ways = st.one_of(
    st.fixed_dictionaries({}, optional={"set_truncated": st.booleans()}),
    st.fixed_dictionaries({}, optional={"reset_at_each_iter": st.booleans()}),
    st.just({"extend_buffer": False}),
    st.fixed_dictionaries(
        {"trajs_per_batch": st.integers(1, 3), "max_unfinished_frames": st.sampled_from([30, 999])}
    ),
)


@st.composite
def environments(draw: Any) -> EnvBase:
    """One environment or several, of which each counts its episodes from another number."""
    scripts = draw(st.lists(episodes, min_size=1, max_size=3))
    made = [EpisodeStepEnv(script, first_episode=1000 * n) for n, script in enumerate(scripts)]
    return made[0] if len(made) == 1 else SerialEnv(len(made), [lambda e=e: e for e in made])


@st.composite
def buffers(draw: Any) -> ReplayBuffer:
    """A buffer, which may hold little more than whole trajectories of one batch take."""
    storage = draw(st.sampled_from([LazyTensorStorage, LazyMemmapStorage]))
    rows = draw(st.sampled_from([90, 130, 400]))
    return draw(st.sampled_from([ReplayBuffer, TensorDictReplayBuffer]))(
        storage=storage(rows, lossless=draw(st.booleans())),
        sampler=draw(samplers),
        batch_size=draw(st.sampled_from([6, 12, 24])),
    )


@settings(max_examples=40, deadline=None)
@given(environments(), buffers(), ways, st.integers(1, 11))
def test_every_sampled_step_is_genuine(env, buffer, way, num_steps):
    """Write more than the buffer holds, and look at a sample after each write."""
    frames = num_steps * max(env.batch_size.numel(), 1)
    options = {"frames_per_batch": frames, "replay_buffer": buffer, **way}
    with Collector(env, total_frames=12 * frames, **options) as collector:
        for _ in collector:
            if len(buffer):
                check_sample(buffer)


def check_sample(buffer: ReplayBuffer) -> None:
    """Compare a sample with what its observations say, and its slices with its markers."""
    sample = buffer.sample()
    episode, step = sample["observation"].unbind(-1)
    assert (sample["next", "observation"][:, 0] == episode).all()
    assert (sample["next", "observation"][:, 1] == step + 1).all()
    assert (sample["next", "reward"][:, 0] == step + 1).all()
    ids = sample["collector", "traj_ids"]
    for number in ids.unique():
        assert len(episode[ids == number].unique()) == 1
    if ("collector", "slice_ids") in sample.keys(True):
        check_slices(sample, episode, step)


def check_slices(sample: TensorDictBase, episode: torch.Tensor, step: torch.Tensor) -> None:
    """Steps of a slice follow each other; it begins and ends where its markers say so."""
    slices = sample["collector", "slice_ids"]
    inside = slices[1:] == slices[:-1]
    follows = (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
    assert follows[inside].all()
    begins, ends = sample["is_init"][:, 0], sample["next", "done"][:, 0]
    assert begins[0]
    assert ends[-1]
    assert begins[1:][~inside].all()
    assert (ends[:-1] == ~inside).all()
    assert not check_layout(sample).errors
