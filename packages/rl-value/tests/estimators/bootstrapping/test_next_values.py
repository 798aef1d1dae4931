"""What a value network reads from a batch, and what it says of its own inputs."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout import Segments
from rl_layout.synthetic import trajectories
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
