"""What a worker does with its share of the environments, in one process."""

import pytest
import torch

from rl_envs import GymEnv, SerialEnv, TransformedEnv, testing
from rl_envs.batched.shared_step_buffers import SharedStepBuffers, schema_of
from rl_envs.batched.worker_env import EnvTraits, EnvWorker
from rl_slabs import Slab
from rl_transforms import InitTracker


@pytest.fixture
def shared():
    """A servant over the last two of three rows, and all rows."""
    servant = EnvWorker([testing.EpisodeStepEnv] * 2, [{"first_episode": 10}, {}])
    with Slab.shared(schema_of(SerialEnv(3, testing.EpisodeStepEnv)), 3) as slab:
        servant.attach(slab, 1)
        yield servant, SharedStepBuffers(slab)
        servant.close()


def test_signals_step_and_reset_the_rows_of_the_worker(shared):
    servant, rows = shared
    servant.restart()
    assert rows.root["observation",].tolist() == [[0, 0], [10, 0], [0, 0]]
    rows.root["action",][:, 0] = True
    servant.step()
    assert rows.after["observation",].tolist() == [[0, 0], [10, 1], [0, 1]]
    rows.mask[2] = True
    servant.reset()
    assert rows.root["observation",].tolist() == [[0, 0], [10, 0], [1, 0]]


def test_messages_go_to_each_environment(shared):
    servant, _ = shared
    roots = servant.reset_each([None, None], {})
    acted = [env.rand_action(root) for env, root in zip(servant.env.envs, roots, strict=True)]
    steps = servant.step_each(acted)
    assert [step["observation"].tolist() for step in steps] == [[10, 1], [0, 1]]


def test_states_are_those_of_each_environment(shared):
    servant, _ = shared
    servant.restart()
    states = servant.get_states()
    servant.restart()
    servant.set_states(states)
    assert [int(state["state"]["episode"]) for state in servant.get_states()] == [10, 0]


def test_closing_closes_the_environments(shared):
    servant, _ = shared
    servant.close()
    assert all(env.is_closed for env in servant.env.envs)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (testing.CountingEnv, False),
        (lambda: GymEnv("CartPole-v1"), True),
        (lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")), True),
        (lambda: SerialEnv(2, testing.CountingEnv), False),
        (lambda: TransformedEnv(GymEnv("CartPole-v1"), InitTracker()), False),
    ],
    ids=["counting", "gym", "gyms", "countings", "transformed"],
)
def test_only_environments_that_read_their_action_alone_say_so(make, expected):
    traits = EnvTraits.of(make())
    assert traits.reads_actions_only is expected
    assert traits.device == torch.device("cpu")
