"""What a value network reads from a batch, and what it says of its own inputs."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout import Segments, keys
from rl_layout.synthetic import trajectories
from rl_layout.testing import EndKind
from rl_value import GAE, DQNLoss
from rl_value.estimators.bootstrapping.next_values import (
    input_leaves,
    lacks_next,
    roles_of,
)
from rl_value.estimators.bootstrapping.sequence_layout import SlotReader, one_step_slots


def step_number() -> TensorDictModule:
    """A network whose value is the second entry of a row's observation."""
    return TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])


def test_state_keys_are_inputs_that_the_network_writes_for_the_next_step():
    cell = TensorDictModule(lambda x, h: (x, h), in_keys=["x", "h"], out_keys=["y", ("next", "h")])
    assert roles_of(cell).states == {("h",)}
    assert roles_of(cell).observed == ("x",)
    assert not roles_of(cell).is_row_wise


def test_observation_keys_leave_out_the_marker():
    marked = TensorDictModule(lambda *x: x[0], ["is_init", "x"], ["y"])
    assert roles_of(marked).observed == ("x",)
    assert not roles_of(marked).is_row_wise


def test_network_without_states_and_markers_is_row_wise():
    assert roles_of(step_number()).is_row_wise


def test_batch_lacks_next_where_no_next_observation_is_stored():
    batch = trajectories([2])
    assert not lacks_next(roles_of(step_number()), batch)
    assert lacks_next(roles_of(step_number()), batch.exclude(("next", "observation")))


class Strict(torch.nn.Linear):
    """A layer that takes finite numbers only, as distributions do."""

    def forward(self, x, *_):
        torch._assert_async(x.isfinite().all())
        return super().forward(x)


@pytest.mark.parametrize("missing_next", ["skip", "root"])
@pytest.mark.parametrize("steps", [None, 1])
@pytest.mark.parametrize("reads", [["observation"], ["observation", "is_init"]])
def test_a_missing_next_observation_of_a_terminated_row_is_not_read(reads, steps, missing_next):
    batch = trajectories([3, 2])  # both are terminated
    for key in ("observation", ("next", "observation")):
        batch[key] = batch[key].float()
    batch["action"] = torch.zeros(5, dtype=torch.int64)
    batch["next", "observation"][[2, 4]] = torch.nan
    batch[keys.NEXT_MISSING] = torch.tensor([False, False, True, False, True])
    if steps is not None:
        batch[keys.STEPS_TO_NEXT_OBS] = torch.full((5, 1), steps)
    critic = TensorDictModule(Strict(2, 1), reads, ["state_value"])
    estimator = GAE(gamma=0.9, lmbda=0.9, value_network=critic, missing_next=missing_next)
    assert estimator(batch)["advantage"].all()
    assert estimator.num_substituted == 0
    loss = DQNLoss(
        TensorDictModule(Strict(2, 3), reads, ["action_value"]), action_space="categorical"
    )
    loss.make_value_estimator("td0", missing_next=missing_next)
    expected = loss(batch)["loss"]
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(loss, backend="eager")(batch)["loss"], expected)


@pytest.mark.parametrize("reads", [["observation"], ["observation", "is_init"]])
def test_rows_that_turn_out_to_have_no_next_observation_are_marked_with_those_that_are(reads):
    batch = trajectories([3, 2], EndKind.CUT).exclude(("next", "observation"))
    batch["observation"] = batch["observation"].float()
    batch["action"] = torch.zeros(5, dtype=torch.int64)
    batch[keys.NEXT_MISSING] = torch.tensor([True, False, False, False, False])
    known = batch.clone().set(keys.MASK, torch.tensor([False, True, False, True, False]))
    critic = TensorDictModule(Strict(2, 1), reads, ["state_value"])
    found = GAE(gamma=0.9, lmbda=0.9, value_network=critic)(batch.clone())
    assert found[keys.NEXT_MISSING].tolist() == [True, False, True, False, True]
    loss = DQNLoss(
        TensorDictModule(Strict(2, 3), reads, ["action_value"]), action_space="categorical"
    )
    target = loss.targets(batch.clone())["action_value_target"]
    expected = loss(known.set("action_value_target", target))["loss"]
    torch.compiler.reset()
    for call in (loss, torch.compile(loss, backend="eager", fullgraph=True)):
        given = batch.clone()
        torch.testing.assert_close(call(given)["loss"], expected)
        assert given[keys.NEXT_MISSING].tolist() == [True, False, True, False, True]


def test_batch_with_some_next_observations_is_refused():
    two = TensorDictModule(lambda x, z: x + z, ["observation", "other"], ["y"])
    with pytest.raises(KeyError, match=r"'other'.* is missing"):
        lacks_next(roles_of(two), trajectories([2]))


def test_slots_hold_each_segment_and_its_last_next_observation():
    batch = trajectories([2, 1])
    segments = Segments.of(batch)
    leaves = input_leaves(roles_of(step_number()), batch)
    ((inputs, size),) = SlotReader(leaves, segments, one_step_slots(segments), None).inputs()
    assert size == 5
    assert inputs["observation",][:, 1].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0]
    assert inputs["is_init",][:, 0].tolist() == [True, False, False, True, False]


def test_slots_show_their_starts_under_each_marker_that_the_network_reads():
    net = TensorDictModule(
        lambda x, *starts: x, ["observation", "is_init", ("agents", "is_init")], ["state_value"]
    )
    batch = trajectories([2, 1])
    segments = Segments.of(batch)
    reader = SlotReader(
        input_leaves(roles_of(net), batch), segments, one_step_slots(segments), None
    )
    ((inputs, _),) = reader.inputs()
    assert inputs["agents", "is_init"].equal(inputs["is_init",])


def test_slots_of_no_step_are_read_as_one_row_of_zeros():
    batch, segments = trajectories([2]), Segments.from_ids(torch.tensor([-1, -1]))
    leaves = input_leaves(roles_of(step_number()), batch)
    ((inputs, size),) = SlotReader(leaves, segments, one_step_slots(segments), None).inputs()
    assert size == 1
    assert inputs["observation",].tolist() == [[0.0, 0.0]]
