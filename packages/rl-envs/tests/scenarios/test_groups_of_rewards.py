"""Nested groups whose data is not at every root: batches of their steps are dense."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_envs import EnvBase, SerialEnv, TransformedEnv
from rl_envs.testing import check_conformance
from rl_layout import check_layout
from rl_specs import Categorical, Composite, Unbounded
from rl_transforms import GroupDone, InitTracker, RewardSum


class Duel(EnvBase):
    """Players move in turns and are rewarded apart: a group that holds rewards alone."""

    def __init__(self, *, sized: bool = True, nested_action: bool = False) -> None:
        super().__init__()
        self.sized, self.count = sized, 0
        self.observation_spec = Unbounded((1,))
        action = Categorical(2, (2,) if nested_action else ())
        self.action_spec = (
            Composite(players=Composite(action=action, shape=(2,))) if nested_action else action
        )
        self.reward_spec = Composite(players=Composite(reward=Unbounded((2, 1)), shape=(2,)))

    def _reset(self, tensordict):
        self.count = 0
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict):
        self.count += 1
        players = {"reward": torch.tensor([[1.0], [-1.0]])}
        return TensorDict(
            {
                "observation": torch.full((1,), float(self.count)),
                "players": TensorDict(players, [2]) if self.sized else players,
                "terminated": torch.tensor([self.count == 3]),
            }
        )

    def _set_seed(self, seed):
        """Nothing is random."""


def single(make):
    return make()


def serial(make):
    return SerialEnv(2, make)


def transformed(make):
    return TransformedEnv(
        make(), GroupDone("players"), InitTracker(), RewardSum([("players", "reward")])
    )


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("nested_action", [True, False])
@pytest.mark.parametrize("wrap", [single, serial, transformed])
def test_a_group_of_rewards_alone_stacks_to_a_dense_batch(sized, nested_action, wrap):
    env = wrap(lambda: Duel(sized=sized, nested_action=nested_action))
    root = env.reset()
    assert root["players"].batch_size == (*env.batch_size, 2)
    batch = env.rollout(7, break_when_any_done=False)
    assert type(batch) is TensorDict
    assert batch["next", "players"].batch_size == (*batch.shape, 2)
    rewards = batch["next", "players", "reward"]
    assert (rewards == torch.tensor([[1.0], [-1.0]])).all()
    assert check_layout(batch).ok


def test_members_of_such_a_group_have_flags_and_sums_of_their_own():
    batch = transformed(Duel).rollout(7, break_when_any_done=False)
    done = batch["next", "players", "done"]
    assert done[:, :, 0].tolist() == [[end, end] for end in (False, False, True) * 2 + (False,)]
    sums = batch["next", "players", "episode_reward"][..., 0]
    assert sums[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch["players", "is_init"][:, 0, 0].tolist() == [t % 3 == 0 for t in range(7)]


def test_such_an_environment_conforms():
    check_conformance(Duel)
    check_conformance(lambda: transformed(Duel))


def test_flags_of_a_group_that_the_done_spec_lacks_are_refused():
    # no root would hold them, and losses would count steps of players that are out
    class Flagged(Duel):
        def _step(self, tensordict):
            return (
                super()
                ._step(tensordict)
                .set(("players", "terminated"), torch.ones(2, 1, dtype=torch.bool))
            )

    with pytest.raises(
        KeyError, match=r"'players', 'terminated'\) is a done flag that done_spec lacks"
    ):
        Flagged().rollout(2)


def test_entries_of_another_length_leave_the_sizes_of_their_group():
    class Shared(Duel):
        def __init__(self):
            super().__init__()
            self.observation_spec = Composite(
                observation=Unbounded((1,)), players=Composite(board=Unbounded((5,)))
            )

        def _reset(self, tensordict):
            return super()._reset(tensordict).set("players", {"board": torch.zeros(5)})

        def _step(self, tensordict):
            after = super()._step(tensordict)
            players = {"board": torch.zeros(5), "reward": after["players", "reward"]}
            return after.set("players", TensorDict(players))

    batch = Shared().rollout(3)
    assert type(batch) is TensorDict
    assert batch["players", "board"].shape == (3, 5)
