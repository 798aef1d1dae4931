from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, tensorclass
from torch import nn

from rl_layout import (
    Flat2TED,
    Nested2TED,
    TED2Flat,
    TED2Nested,
    check_layout,
    compare_neighbours,
    contradictions,
    draw_layout,
    join_trajectories,
    must_compare_observations,
    nest_trajectories,
    pad_trajectories,
    refuse_shared_states,
    split_trajectories,
    step_mdp,
)
from rl_layout.segments.segments import Segments
from rl_layout.synthetic import trajectories

BATCH_CALLS = [
    Segments.of,
    check_layout,
    compare_neighbours,
    contradictions,
    draw_layout,
    join_trajectories,
    must_compare_observations,
    nest_trajectories,
    pad_trajectories,
    split_trajectories,
    step_mdp,
    TED2Flat(),
    TED2Nested(),
    Flat2TED(),
    Nested2TED(),
]


@pytest.mark.parametrize("call", BATCH_CALLS)
@pytest.mark.parametrize("given", [torch.zeros(2, 3), 3, "text", ("a", "b"), None])
def test_arguments_that_are_no_tensordict_are_named(call, given):
    with pytest.raises(TypeError, match=r"(batch|tensordict|data): expected a tensordict, got "):
        call(given)


@pytest.mark.parametrize("networks", ["sum", 3, None, torch.zeros(2), ["a"]])
def test_networks_without_names_are_named(networks):
    with pytest.raises(TypeError, match=r"networks: expected modules by the name of their role"):
        refuse_shared_states(networks)


def test_a_role_is_a_string_and_networks_may_be_a_module_dict():
    with pytest.raises(TypeError, match=r"networks: expected the name of a role.* got 1 \(int\)"):
        refuse_shared_states({1: nn.Linear(1, 1)})
    refuse_shared_states(nn.ModuleDict({"actor": nn.Linear(1, 1)}))


@pytest.mark.parametrize("states", [torch.zeros(2), 1, ["observation"]])
def test_default_states_that_are_no_dictionary_are_named(states):
    with pytest.raises(TypeError, match="default_states: expected a dictionary"):
        check_layout(trajectories([2, 3]), default_states=states)


@pytest.mark.parametrize(("default", "kind"), [("text", TypeError), (torch.zeros(7), RuntimeError)])
def test_a_default_that_does_not_fit_its_state_is_named(default, kind):
    with pytest.raises(kind, match=r"default_states: expected \[2\] or a number for 'observation'"):
        check_layout(trajectories([2, 3]), default_states={"observation": default})


@pytest.mark.parametrize("call", [compare_neighbours, contradictions, must_compare_observations])
def test_a_dimension_that_the_batch_lacks_is_named(call):
    batch = trajectories([2, 3]).exclude("collector")
    with pytest.raises(IndexError, match=r"dim: expected one of 1 dimensions .*\[5\], got 1"):
        call(batch, 1)
    for dim in ("time", torch.zeros(2), 0.5):
        with pytest.raises(TypeError, match="dim: expected a whole number"):
            call(batch, dim)


@pytest.mark.parametrize("name", ["prefix", "trajectory_key", "done_key"])
def test_a_key_of_a_split_that_is_none_is_named(name):
    for key in ((), 3, ("a", 1)):
        with pytest.raises(TypeError, match=f"{name}: expected a string or a tuple of strings"):
            split_trajectories(trajectories([2, 3]), **{name: key})


def test_a_prefix_that_is_a_leaf_and_a_key_below_a_leaf_are_named():
    with pytest.raises(ValueError, match="is a leaf of the batch, no group"):
        split_trajectories(trajectories([2, 3]), prefix="action")
    with pytest.raises(KeyError, match=r"\('action', 'a'\) is missing"):
        split_trajectories(trajectories([2, 3]), trajectory_key=("action", "a"))


@pytest.mark.parametrize("count", [0, -1, 2**63])
def test_a_number_of_trajectories_to_draw_is_at_least_one(count):
    with pytest.raises(ValueError, match=r"max_trajectories: expected (at least 1|.* 64 bits)"):
        draw_layout(trajectories([2, 3]), max_trajectories=count)
    with pytest.raises(TypeError, match="max_trajectories: expected a whole number"):
        draw_layout(trajectories([2, 3]), max_trajectories=[count])


def test_wrong_options_of_a_step_are_named():
    step = trajectories([3])[1]
    with pytest.raises(TypeError, match=r"exclude_action: expected True or False, got a tensor"):
        step_mdp(step, exclude_action=torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"reward_keys: expected a key .* or a list of keys, got 3"):
        step_mdp(step, reward_keys=3)
    with pytest.raises(TypeError, match="next_tensordict: expected a tensordict, got 3"):
        step_mdp(step, 3)
    with pytest.raises(TypeError, match="'next': expected a tensordict"):
        step_mdp(TensorDict({"next": torch.zeros(2)}, [2]))


def test_the_target_of_a_step_has_the_batch_size_of_the_step():
    batch = trajectories([2, 3])
    with pytest.raises(RuntimeError, match=r"expected batch size \[5\].* got \[2\]"):
        step_mdp(batch, batch[:2].clone())


@tensorclass
class Steps:
    observation: torch.Tensor
    next: TensorDict


def test_a_class_of_tensors_is_let_through():
    batch = trajectories([2, 3])
    given = Steps(batch["observation"], batch["next"], batch_size=[5])
    assert must_compare_observations(given) == must_compare_observations(
        TensorDict({"observation": batch["observation"], "next": batch["next"]}, [5])
    )


def test_checks_do_not_break_the_graph_of_compiled_code():
    def run(batch):
        return must_compare_observations(batch), step_mdp(batch)["observation"] + 1

    batch = trajectories([2, 3])
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert compiled(batch)[0] == run(batch)[0]
    assert torch.equal(compiled(batch)[1], run(batch)[1])


def test_the_flat_form_given_to_the_reader_of_the_jagged_one_is_named():
    with pytest.raises(ValueError, match=r"'shared': expected jagged leaves.* Call Flat2TED"):
        Nested2TED()(TED2Flat()(trajectories([2, 3])))


def two_and_four():
    return Segments.from_lengths(torch.tensor([2, 4]))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Segments.from_starts, "is_init"),
        (Segments.from_ends, "done"),
        (Segments.from_ids, "ids"),
        (lambda given: Segments.from_ids(torch.arange(3), torch.arange(3), mask=given), "mask"),
        (Segments.from_lengths, "lengths"),
        (lambda given: Segments.from_lengths(torch.tensor([2]), given), "kinds"),
        (two_and_four().spread, "values"),
        (two_and_four().gather, "values"),
        (two_and_four().scatter, "values"),
        (two_and_four().pad, "values"),
        (two_and_four().unpad, "padded"),
        (two_and_four().nest, "values"),
        (two_and_four().unnest, "nested"),
        (two_and_four().sum, "values"),
        (two_and_four().mean, "values"),
        (two_and_four().first, "values"),
        (two_and_four().last, "values"),
    ],
)
@pytest.mark.parametrize("given", [[1, 2], "text", TensorDict({}, [])])
def test_segments_name_what_is_no_tensor(call, name, given):
    with pytest.raises(TypeError, match=rf"{name}: expected a tensor of .*, got .*Call "):
        call(given)


@pytest.mark.parametrize("name", ["gather", "scatter", "sum", "first", "pad"])
def test_segments_name_a_sparse_leaf(name):
    with pytest.raises(TypeError, match=r"values: expected a dense tensor, got torch.sparse_coo"):
        getattr(two_and_four(), name)(torch.zeros(6, 3).to_sparse())


def test_segments_say_how_many_values_they_expect():
    segments = Segments.from_ids(torch.tensor([4, -1, 6, 6]))
    with pytest.raises(ValueError, match=r"expected \[2, \.\.\.\], one a segment, got \[3\]"):
        segments.spread(torch.zeros(3))
    with pytest.raises(ValueError, match=r"expected \[3, \.\.\.\], one row a real step, got \[4\]"):
        segments.scatter(torch.zeros(4))
    with pytest.raises(ValueError, match=r"expected padded segments \[2, 2, \.\.\.\].*got \[2\]"):
        segments.unpad(torch.zeros(2))


def test_a_fill_is_a_number_a_share_a_number_and_a_device_a_device():
    segments = two_and_four()
    with pytest.raises(TypeError, match=r"fill: expected a number, got 'a'"):
        segments.pad(torch.zeros(6), "a")
    with pytest.raises(TypeError, match=r"max_waste: expected a share"):
        segments.time_blocks(torch.zeros(2))
    with pytest.raises(ValueError, match=r"device: expected a torch.device or its name"):
        segments.to("nowhere")
    with pytest.raises(TypeError, match=r"nested: expected a jagged nested tensor"):
        segments.unnest(torch.zeros(2, 4))


def test_a_drawing_names_what_is_no_file_and_what_are_no_axes():
    drawing = draw_layout(trajectories([2, 3]))
    with pytest.raises(TypeError, match=r"path: expected a file name"):
        drawing.save([1])
    with pytest.raises(TypeError, match=r"ax: expected axes of matplotlib"):
        drawing.plot(3)
