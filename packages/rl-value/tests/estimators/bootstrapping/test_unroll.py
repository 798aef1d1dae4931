"""What a value network reads from a batch, and what it says of its own inputs."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout import Segments
from rl_layout.synthetic import trajectories
from rl_value.estimators.bootstrapping.sequence_layout import one_step_slots
from rl_value.estimators.bootstrapping.unroll import (
    SlotReader,
    evaluate,
    is_row_wise,
    lacks_next,
    observation_keys,
    read_side_by_side,
    state_keys,
    unroll,
)


def step_number() -> TensorDictModule:
    """A network whose value is the second entry of a row's observation."""
    return TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])


def test_state_keys_are_inputs_that_the_network_writes_for_the_next_step():
    cell = TensorDictModule(lambda x, h: (x, h), in_keys=["x", "h"], out_keys=["y", ("next", "h")])
    assert state_keys(cell) == {("h",)}
    assert observation_keys(cell) == ["x"]
    assert not is_row_wise(cell)


def test_observation_keys_leave_out_the_marker():
    marked = TensorDictModule(lambda *x: x[0], ["is_init", "x"], ["y"])
    assert observation_keys(marked) == ["x"]
    assert not is_row_wise(marked)


def test_network_without_states_and_markers_is_row_wise():
    assert is_row_wise(step_number())


def test_batch_lacks_next_where_no_next_observation_is_stored():
    batch = trajectories([2])
    assert not lacks_next(step_number(), batch)
    assert lacks_next(step_number(), batch.exclude(("next", "observation")))


def test_batch_with_some_next_observations_is_refused():
    two = TensorDictModule(lambda x, z: x + z, ["observation", "other"], ["y"])
    with pytest.raises(KeyError, match=r"'other'.* is missing"):
        lacks_next(two, trajectories([2]))


def test_unroll_reads_each_segment_and_its_last_next_observation():
    batch, net = trajectories([2, 1]), step_number()
    segments = Segments.of(batch)
    reader = SlotReader(net, batch, segments, one_step_slots(segments), None)
    expected = [0.0, 1.0, 2.0, 0.0, 1.0]
    assert reader.read(0, 5)["observation"][:, 1].tolist() == expected
    assert unroll(reader, ["state_value"])[0].flatten().tolist() == expected


def test_rows_and_last_next_observations_are_read_apart_for_row_wise_networks():
    batch = trajectories([2, 1])
    rows, ends = read_side_by_side(step_number(), batch, Segments.of(batch), None)
    assert rows["observation",][:, 1].tolist() == [0.0, 1.0, 0.0]
    assert ends["observation",][:, 1].tolist() == [2.0, 1.0]


def test_evaluate_calls_the_network_once_for_each_of_its_inputs():
    net = TensorDictModule(lambda x: x * 2, ["x"], ["y"])
    one, three = {("x",): torch.ones(1, 1)}, {("x",): torch.full((3, 1), 3.0)}
    first, second = evaluate(net, [(one, 1), (three, 3)], "y", None)
    assert first.tolist() == [[2.0]]
    assert second.tolist() == [[6.0], [6.0], [6.0]]
