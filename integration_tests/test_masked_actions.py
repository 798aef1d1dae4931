"""Masks of actions and lives mean the same to environments, policies, collectors and buffers."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule

from catalogue.environments import LivesEnv, allowed_steps
from catalogue.samples import assert_same
from rl_collect import Collector
from rl_envs import TransformedEnv
from rl_policies import OneHotCategorical, ProbabilisticActor
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import (
    ActionMask,
    EndOfLife,
    RewardSum,
)


def test_lives_are_the_same_in_an_environment_and_in_a_buffer():
    stepped = allowed_steps(TransformedEnv(LivesEnv(batch_size=(3,)), EndOfLife()))
    plain = allowed_steps(LivesEnv(batch_size=(3,)))
    assert_same(stepped.exclude("end-of-life"), EndOfLife()(plain))
    assert stepped["next", "end-of-life"].any()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), transform=EndOfLife(mark_done=True)
    )
    buffer.extend(plain[0])
    found = buffer[:]
    marked = stepped["next", "end-of-life"][0]
    truncated = plain["next", "truncated"][0]
    assert torch.equal(found["next", "done"], marked)
    assert torch.equal(found["next", "terminated"], marked & ~truncated)


def test_masked_actions_are_drawn_and_chosen_by_the_mask():
    env = TransformedEnv(LivesEnv(batch_size=(3,)), ActionMask())
    rows = env.rollout(30, break_when_any_done=False)
    assert (rows["action"] & ~rows["action_mask"]).sum() == 0
    assert rows["action"].any(-1).all()
    assert rows["action"][rows["action_mask"].all(-1)].float().mean(0).min() > 0.2
    around = TransformedEnv(env, RewardSum()).rollout(30, break_when_any_done=False)
    assert (around["action"] & ~around["action_mask"]).sum() == 0
    first = torch.tensor([[True, False]] * 3)
    with pytest.raises(ValueError, match="'action_mask' forbids the action in rows"):
        env.rollout(9, lambda root: root.set("action", first), break_when_any_done=False)
    with pytest.raises(ValueError, match="pass the root"):
        env.rand_action()


def test_a_masked_policy_reads_the_mask_by_its_key():
    net = TensorDictModule(lambda seen: torch.zeros(*seen.shape[:-1], 2), ["numbers"], ["logits"])
    env = TransformedEnv(LivesEnv(batch_size=(3,)), ActionMask())
    actor = ProbabilisticActor(
        net,
        spec=env.action_spec,
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=OneHotCategorical,
        default_interaction_type=InteractionType.RANDOM,
    )
    rows = env.rollout(30, actor, break_when_any_done=False)
    assert (rows["action"].bool() & ~rows["action_mask"]).sum() == 0


def test_random_frames_of_a_collector_are_drawn_by_the_mask():
    def act(root):
        first = root["action_mask"][..., 0]
        return root.set("action", torch.stack([first, ~first], -1))

    env = TransformedEnv(LivesEnv(batch_size=(3,)), ActionMask())
    collector = Collector(env, act, frames_per_batch=30, init_random_frames=30)
    drawn, chosen = collector.next(), collector.next()
    assert (drawn["action"] & ~drawn["action_mask"]).sum() == 0
    assert drawn["action"][drawn["action_mask"].all(-1)].float().mean(0).min() > 0.1
    assert (chosen["action"] == act(chosen.copy())["action"]).all()
