"""Input that estimators refuse."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
)

from rl_layout import keys
from rl_layout.testing import EndKind, trajectories
from rl_value import GAE, TD0Estimator

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)

STEPS = keys.STEPS_TO_NEXT_OBS


def test_some_missing_next_observations_are_refused(prepared):
    net = TensorDictModule(lambda x, y: x[..., :1] + y[..., :1], ["observation", "goal"], ["v"])
    batch = prepared(trajectories([3]))
    batch["goal"] = torch.zeros(3, 2)
    with pytest.raises(KeyError, match=r"'goal'.*is missing, while other next observations"):
        GAE(gamma=0.9, lmbda=0.9, value_network=net)(batch)


@pytest.mark.parametrize("marked", [False, True])
def test_a_next_observation_of_another_shape_is_refused_however_it_is_read(marked, prepared):
    batch = prepared(trajectories([3]))
    batch["next", "observation"] = torch.zeros(3, 5)
    reads = ["observation", "is_init"] if marked else ["observation"]
    net = TensorDictModule(lambda x, *_: x[:, :1], reads, ["state_value"])
    with pytest.raises(ValueError, match=r"expected the shape at the root, \[3, 2\]"):
        TD0Estimator(gamma=0.9, value_network=net)(batch)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\]"),
        ({"lmbda": -1}, ValueError, r"lmbda: expected a number in \[0, 1\]"),
        ({"shifted": 1}, ValueError, "shifted: expected True or False"),
        ({"shifted_budget": 0}, ValueError, "shifted_budget: expected at least 1"),
        ({"num_chunks": 0}, ValueError, "num_chunks: expected at least 1"),
        ({"num_chunks": 1.5}, TypeError, "num_chunks: expected a whole number"),
        ({"value_chunk_size": 2, "num_chunks": 2}, ValueError, "pass one of them"),
        ({"num_chunk": 3, "num_chunks": 2}, ValueError, "are one setting"),
        ({"missing_next": "mean"}, ValueError, "missing_next: expected 'skip' or 'root'"),
        ({"value_chunk_dim": "time"}, TypeError, "value_chunk_dim: expected a whole number"),
        (
            {"value_network": torch.nn.Linear(2, 1)},
            TypeError,
            "got Linear. Wrap it in a TensorDictModule",
        ),
        ({"advantage_key": "a"}, RuntimeError, r"call set_keys\(advantage="),
        ({"speed": 1}, TypeError, "unexpected argument 'speed'"),
        ({"time_dim": "time"}, TypeError, "time_dim: expected a whole number, got 'time'"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message, critic):
    with pytest.raises(error, match=message):
        GAE(**{"gamma": 0.9, "lmbda": 0.9, "value_network": critic(), **settings})


def test_wrong_names_are_refused(critic, prepared):
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic())
    with pytest.raises(KeyError, match="there is no entry 'rewards'"):
        estimator.set_keys(rewards="a")
    with pytest.raises(ValueError, match="reward: a key must be a string"):
        estimator.set_keys(reward=3)
    with pytest.raises(KeyError, match=r"the network writes \['state_value'\]"):
        estimator.set_keys(value="v")
    two = TensorDictModule(lambda x: (x, x), ["observation"], ["v", "w"])
    with pytest.raises(KeyError, match=r"writes \['v', 'w'\], not 'state_value'.*set_keys\(value="):
        GAE(gamma=0.9, lmbda=0.9, value_network=two)(prepared(trajectories([3])))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: b.exclude(("next", "reward")), KeyError, "'reward'.* is missing"),
        (
            lambda b: b.exclude(("next", "done"), ("next", "terminated")),
            KeyError,
            r"without them no target knows .*set_keys\(terminated=, done=\)",
        ),
        (
            lambda b: b.set(("next", "terminated"), b["next", "terminated"].long()),
            TypeError,
            "'terminated'.*expected torch.bool",
        ),
        (
            lambda b: b.set(("next", "reward"), b["next", "reward"].long()),
            TypeError,
            "'reward': expected floating point",
        ),
        (
            lambda b: b.set(("next", "reward"), torch.zeros(3)),
            ValueError,
            r"the reward ends in a dimension of its own.*unsqueeze\(-1\)",
        ),
        (
            lambda b: b.set(STEPS, torch.tensor([[1], [0], [1]])),
            ValueError,
            "steps_to_next_obs.*expected 1 or more steps, got 0",
        ),
        (
            lambda b: b.set(STEPS, torch.tensor([[1], [2**40], [1]])),
            ValueError,
            "steps_to_next_obs.*expected at most 2,147,483,647 steps, got 1,099,511,627,776",
        ),
        (
            lambda b: b.set(("next", "reward"), torch.zeros(3, 2)),
            ValueError,
            r"value: expected the shape of the reward, \[3, 2\]",
        ),
        (lambda b: b.exclude("observation"), KeyError, "'observation' is missing"),
        (
            lambda b: b.set(keys.NEXT_MISSING, torch.zeros(3)),
            TypeError,
            "next_missing.*expected torch.bool",
        ),
        (lambda b: b[0], ValueError, r"got batch size \[\]"),
        (lambda b: b.to("meta"), ValueError, "on 'meta' and holds no numbers"),
        (lambda b: b.lock_(), RuntimeError, r"the batch is locked.*Pass batch.copy\(\)"),
    ],
)
def test_wrong_data_is_refused(change, error, message, critic, prepared):
    batch = change(prepared(trajectories([3])))
    with pytest.raises(error, match=message):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic())(batch)


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        (torch.tensor([[1.5], [1.0], [1.0]]), TypeError, "'far'.*expected torch.int64, got"),
        (
            torch.ones(3, dtype=torch.int64),
            ValueError,
            r"'far'.*expected shape \[3, 1\], got \[3\]",
        ),
        (torch.ones(3, 2, dtype=torch.int64), ValueError, r"'far'.*\[3, 1\], got \[3, 2\]"),
        (torch.tensor([[1], [0], [1]]), ValueError, "'far': expected 1 or more steps, got 0"),
    ],
)
def test_wrong_numbers_of_steps_of_another_name_are_refused(
    steps, error, message, critic, prepared
):
    batch = prepared(trajectories([3])).set(("next", "far"), steps)
    estimator = TD0Estimator(gamma=0.9, value_network=critic())
    estimator.set_keys(steps_to_next_obs="far")
    with pytest.raises(error, match=message):
        estimator(batch)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": "0.9"}, TypeError, "gamma: expected a number in .* got '0.9'"),
        ({"gamma": None}, TypeError, "gamma: expected a number in .* got None"),
        ({"gamma": torch.ones(4)}, ValueError, r"gamma: .* broadcasts to \[3, 1\], got \[4\]"),
    ],
)
def test_settings_that_do_not_fit_the_batch_are_refused(settings, error, message, critic, prepared):
    with pytest.raises(error, match=message):
        GAE(**{"gamma": 0.9, "lmbda": 0.9, "value_network": critic(), **settings})(
            prepared(trajectories([3]))
        )


def test_next_values_of_another_number_of_steps_are_refused(critic, prepared):
    batch = prepared(trajectories([4, 3], EndKind.CUT))
    with pytest.raises(ValueError, match=r"next_value: expected \[7, 1\].* got \[6, 1\]"):
        GAE(gamma=0.9, lmbda=0.9, value_network=critic()).value_estimate(
            batch, next_value=torch.zeros(6, 1)
        )


def test_a_group_of_entries_is_no_input(prepared):
    batch = prepared(trajectories([4, 3], EndKind.CUT))
    batch["both"] = TensorDict({"x": torch.ones(7, 2)}, [7])
    net = TensorDictModule(lambda both: both["x"][:, :1], ["both"], ["state_value"])
    with pytest.raises(TypeError, match=r"'both': expected a tensor.*Name its leaves in in_keys"):
        GAE(gamma=0.9, lmbda=0.9, value_network=net)(batch)


def test_value_estimate_refuses_next_values_that_are_no_tensor():
    estimator = TD0Estimator(gamma=0.5, value_network=None)
    with pytest.raises(TypeError, match=r"next_value: expected a tensor or None, got 2 \(int\)"):
        estimator.value_estimate(trajectories([3]), next_value=2)


def test_skip_existing_is_a_flag():
    assert TD0Estimator(gamma=0.5, value_network=None, skip_existing=np.True_).skip_existing
    with pytest.raises(TypeError, match="skip_existing: expected True, False or None"):
        TD0Estimator(gamma=0.5, value_network=None, skip_existing=np.zeros(3))
