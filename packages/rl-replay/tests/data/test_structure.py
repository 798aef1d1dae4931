"""The caller's data as rows, and rows as the caller's data."""

from __future__ import annotations

import json
from collections import namedtuple

import numpy as np
import pytest
import torch
from tensordict import TensorClass, TensorDict

from rl_replay.data.pytree import Branch, take_apart
from rl_replay.data.structure import Arrangement, Structure
from rl_replay.linking.markers import Extent

Pair = namedtuple("Pair", ["left", "right"])


class Step(TensorClass):
    """A row with named fields."""

    seen: torch.Tensor
    gain: torch.Tensor


def there_and_back(data, arrangement=Arrangement()):  # noqa: B008 - immutable
    structure = Structure.of(data)
    plain = json.loads(json.dumps(structure.to_plain()))
    assert Structure.from_plain(plain) == structure
    batch = structure.take_apart(data, arrangement)
    return batch, Structure.from_plain(plain).put_together(batch.cells)


def test_tree_of_dicts_lists_and_tuples_is_restored() -> None:
    data = {"a": {"b": torch.randn(3), "c": [torch.zeros(3, 2), (torch.ones(3, 10),)]}}
    batch, found = there_and_back(data)
    assert batch.shape == (3,)
    assert isinstance(found["a"]["c"], list)
    assert isinstance(found["a"]["c"][1], tuple)
    assert found["a"]["c"][1][0].shape == (3, 10)
    assert torch.equal(found["a"]["b"], data["a"]["b"])


def test_dicts_may_name_their_leaves_in_any_order() -> None:
    structure = Structure.of({"a": torch.zeros(2), "b": (torch.zeros(2), {"c": torch.zeros(2)})})
    other = {"b": (torch.ones(2) + 1, {"c": torch.ones(2) + 2}), "a": torch.ones(2)}
    batch = structure.take_apart(other, Arrangement())
    found = structure.put_together(batch.cells)
    assert [found["a"][0], found["b"][0][0], found["b"][1]["c"][0]] == [1, 2, 3]
    assert list(found) == ["a", "b"]
    for wrong in (
        {"a": torch.zeros(2), "b": (torch.zeros(2), torch.zeros(2))},
        {"a": torch.zeros(2), "b": [torch.zeros(2), {"c": torch.zeros(2)}]},
        {"a": torch.zeros(2), "b": (torch.zeros(2),)},
        {"a": {"b": torch.zeros(2)}, "b": (torch.zeros(2), {"c": torch.zeros(2)})},
        {"a": torch.zeros(2)},
        torch.zeros(2),
    ):
        with pytest.raises(
            TypeError, match=r"stored, \{'a': \.\.\., 'b': \(\.\.\., \{'c': \.\.\.\}\)\}"
        ):
            structure.take_apart(wrong, Arrangement())


def test_form_of_a_tree_is_printed_as_the_tree() -> None:
    tree = {"a": [1], "b": (2, Pair(3, (4,)))}
    assert str(take_apart(tree)[0]) == "{'a': [...], 'b': (..., Pair(..., (...)))}"


def test_arrays_become_tensors() -> None:
    batch, found = there_and_back(np.arange(3))
    assert found.tolist() == [0, 1, 2]
    assert batch.shape == (3,)


def test_named_tuple_is_restored() -> None:
    _, found = there_and_back(Pair(torch.arange(2), torch.arange(2, 4)))
    assert isinstance(found, Pair)
    assert found.right.tolist() == [2, 3]


def test_tensorclass_is_restored() -> None:
    data = Step(seen=torch.randn(3, 2), gain=torch.ones(3), batch_size=[3])
    _, found = there_and_back(data)
    assert isinstance(found, Step)
    assert torch.equal(found.seen, data.seen)


def test_nested_tensorclasses_and_batch_sizes_are_restored() -> None:
    inner = Step(seen=torch.randn(3, 2), gain=torch.ones(3), batch_size=[3])
    agents = TensorDict({"speed": torch.randn(3, 4, 5)}, [3, 4])
    _, found = there_and_back(TensorDict({"step": inner, "agents": agents}, [3]))
    assert isinstance(found["step"], Step)
    assert found["agents"].batch_size == (3, 4)


@pytest.mark.parametrize("dim_extend", [0, 1, 2])
def test_rows_of_three_dimensions_follow_the_one_that_grows(dim_extend: int) -> None:
    data = TensorDict({"a": torch.arange(2 * 3 * 5).view(2, 3, 5)}, [2, 3, 5])
    batch = Structure.of(data).take_apart(data, Arrangement(3, dim_extend))
    expected = data["a"].transpose(0, dim_extend).reshape(-1)
    assert batch.cells["a"].tolist() == expected.tolist()


def test_batch_of_environments_is_stored_row_by_row() -> None:
    data = TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3])
    batch = Structure.of(data).take_apart(data, Arrangement())
    assert batch.cells["a"].tolist() == list(range(6))
    assert batch.extent.length == 3


def test_dimensions_beyond_those_of_the_storage_become_columns() -> None:
    data = TensorDict({"a": torch.arange(12).view(2, 3, 2)}, [2, 3, 2])
    batch = Structure.of(data).take_apart(data, Arrangement(2, 1))
    assert batch.shape == (6, 2)
    assert batch.cells["a"].tolist() == data["a"].view(6, 2).T.reshape(-1).tolist()


def test_flat_rows_are_not_copied() -> None:
    data = TensorDict({"a": torch.arange(6)}, [6])
    assert Structure.of(data).take_apart(data, Arrangement()).cells["a"] is data["a"]


def test_keys_of_samples_are_left_out_and_the_sample_stays() -> None:
    data = TensorDict({"a": torch.arange(2), "index": torch.arange(2)}, [2])
    data["collector", "row"] = data["collector", "slice_ids"] = torch.arange(2)
    data["priority_weight"] = torch.ones(2)
    batch = Structure.of(data).take_apart(data, Arrangement())
    assert list(batch.cells.keys(True, True)) == ["a"]
    assert "index" in data


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (torch.empty(0, 3), ValueError, "nothing to store"),
        (TensorDict({"a": torch.empty(0)}, [0]), ValueError, "nothing to store"),
        (TensorDict({"a": torch.ones(())}, []), ValueError, "at least 1 batch dimension"),
        ({"a": torch.ones(2), "b": torch.ones(3)}, ValueError, r"equal, got shapes \{'a'"),
        ({"a": "text"}, TypeError, r"got str at \('a',\): use ListStorage"),
        ({3: torch.ones(2)}, TypeError, "expected strings as keys, got 3"),
    ],
)
def test_data_without_rows_are_refused(data, error, message) -> None:
    with pytest.raises(error, match=message):
        Structure.of(data).take_apart(data, Arrangement())


def test_data_of_another_structure_are_refused() -> None:
    with pytest.raises(TypeError, match="holds tensordict rows, got Tensor"):
        Structure.of(TensorDict({"a": torch.ones(2)}, [2])).take_apart(torch.ones(2), Arrangement())
    with pytest.raises(TypeError, match="like the first that were stored"):
        Structure.of((torch.ones(2),)).take_apart([torch.ones(2)], Arrangement())
    with pytest.raises(TypeError, match="like the first that were stored"):
        Structure.of(torch.ones(2)).take_apart({"a": torch.ones(2)}, Arrangement())


def test_branches_are_plain_lists() -> None:
    branch, _ = take_apart((1, [2, {"a": 3}]))
    assert Branch.from_plain(json.loads(json.dumps(branch.to_plain()))) == branch


@pytest.mark.parametrize(
    ("shape", "dim_extend"),
    [((7,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 5), 0), ((2, 3, 5), 1), ((2, 3, 5), 2)],
)
def test_neighbours_are_the_rows_adjacent_along_the_last_dimension(shape, dim_extend) -> None:
    batch = torch.arange(torch.Size(shape).numel()).view(shape)
    cells = Arrangement(len(shape), dim_extend).flat(batch, torch.Size(shape)).tolist()
    extent = Extent.of(shape, dim_extend)
    inside, stride = extent.inside(), extent.stride
    pairs = [i for i in range(len(cells) - stride) if inside is None or inside[i]]
    found = {(cells[i], cells[i + stride]) for i in pairs}
    before, after = batch[..., :-1].reshape(-1).tolist(), batch[..., 1:].reshape(-1).tolist()
    assert found == set(zip(before, after, strict=True))


def test_single_step_of_many_columns_has_no_neighbours() -> None:
    for dim_extend in (0, 1):
        extent = Extent.of((4, 1), dim_extend)
        inside = extent.inside()
        assert extent.stride >= 4 or (inside is not None and not inside.any())
