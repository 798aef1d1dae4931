"""rl-envs takes the place of the skeleton's environments: the same seeds give the same rows."""
# ruff: noqa: D103 - a test's name says what it promises

from __future__ import annotations

import torch
from tensordict import TensorDict

from rl_envs import GymEnv, SerialEnv
from rl_envs.testing import EpisodeStepEnv
from rl_layout import Segments, check_layout, keys
from skeleton.environments import CartPoleEnv, CountingEnv

ENDINGS = [(4, "truncated"), (1, "terminated"), (3, "terminated")]
COMPARED = [
    "observation",
    ("next", "observation"),
    keys.NEXT_REWARD,
    keys.NEXT_DONE,
    keys.NEXT_TERMINATED,
    keys.NEXT_TRUNCATED,
]


def played_by_twin(environment, actions) -> TensorDict:
    """Rows [T] of a twin, reset after every done step."""
    rows, root = [], environment.reset()
    for action in actions:
        row = environment.step(root.set("action", action))
        rows.append(row)
        done = bool(row[keys.NEXT_DONE])
        after = TensorDict({"observation": row["next", "observation"]}, [])
        root = environment.reset() if done else after
    return torch.stack(rows)


def played(environment, actions) -> TensorDict:
    """Rows [T] of an environment of ours, given the actions one by one."""
    given = iter(actions)
    return environment.rollout(
        len(actions),
        lambda root: root.set("action", next(given)),
        break_when_any_done=False,
    )


def assert_same(ours, twin) -> None:
    for key in COMPARED:
        assert ours[key].dtype == twin[key].dtype, key
        assert torch.equal(ours[key], twin[key]), key


def test_cartpole_plays_what_its_twin_plays():
    actions = torch.randint(0, 2, (200,)).unbind()
    ours = GymEnv("CartPole-v1", categorical_action_encoding=True)
    ours.set_seed(7)
    ours.reset()  # the twin spends its seed on a reset of its own
    assert_same(played(ours, actions), played_by_twin(CartPoleEnv(7), actions))


def test_episodes_of_known_length_are_those_of_the_twin():
    actions = torch.nn.functional.one_hot(torch.zeros(20, dtype=torch.int64), 2).bool().unbind()
    twin = played_by_twin(CountingEnv(ENDINGS), actions)
    ours = played(EpisodeStepEnv(ENDINGS), actions)
    assert torch.equal(ours[keys.NEXT_DONE], twin[keys.NEXT_DONE])
    assert torch.equal(ours[keys.NEXT_TRUNCATED], twin[keys.NEXT_TRUNCATED])
    assert torch.equal(ours["next", "observation"].float(), twin["next", "observation"])


def test_rollouts_of_several_environments_obey_the_contract():
    environments = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
    environments.set_seed(0)
    batch = environments.rollout(60, break_when_any_done=False)
    report = check_layout(batch).raise_if_broken()
    assert not report.notes, str(report)
    assert int(Segments.of(batch).lengths.sum()) == 3 * 60
