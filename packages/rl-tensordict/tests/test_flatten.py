from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack

from rl_tensordict import Leaves, leaves, leaves_of, nest, tensors


def test_leaves_lists_nested_leaves():
    batch = TensorDict({"a": {"b": torch.zeros(3)}, "c": torch.ones(3)}, [3])
    assert {key: value.sum().item() for key, value in leaves(batch)} == {
        ("a", "b"): 0.0,
        ("c",): 3.0,
    }


def test_nest_undoes_tensors():
    batch = TensorDict({"a": {"b": torch.zeros(3)}, "c": torch.ones(3, 2)}, [3])
    assert (TensorDict(nest(tensors(batch)), [3]) == batch).all()


def test_tensors_refuses_other_data_by_its_key():
    batch = TensorDict({"a": {"word": NonTensorData("yes", [3])}}, [3])
    with pytest.raises(TypeError, match=r"\('a', 'word'\): expected a tensor"):
        tensors(batch)


def test_leaves_of_is_followed_by_compilers():
    call = torch.compile(
        lambda batch: leaves_of(batch)["a", "b"] + 1, backend="eager", fullgraph=True
    )
    assert call(TensorDict({"a": {"b": torch.zeros(3)}}, [3])).eq(1).all()


def test_leaves_of_collects_leaves_once():
    batch = TensorDict({"a": {"b": torch.zeros(3)}, "c": torch.ones(3)}, [3])
    found = leaves_of(batch)
    assert type(found) is Leaves
    assert list(found) == [("a", "b"), ("c",)]
    assert found["c",] is batch["c"]
    assert leaves_of(found) is found
    lazy = leaves_of(lazy_stack([batch, batch.clone()]))
    assert lazy["a", "b"].shape == (2, 3)


@pytest.mark.parametrize("layout", ["strided", "jagged"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_leaves_of_refuses_nested_tensors(layout):
    leaf = torch.nested.nested_tensor(
        [torch.zeros(2), torch.zeros(3)], layout=getattr(torch, layout)
    )
    with pytest.raises(TypeError, match=r"leaf \('a', 'b'\) is a nested or sparse tensor"):
        leaves_of(TensorDict({"a": {"b": leaf}}, []))


def test_leaves_of_refuses_sparse_tensors_and_other_data():
    with pytest.raises(TypeError, match=r"leaf \('b',\) is a nested or sparse tensor"):
        leaves_of(TensorDict({"b": torch.eye(3).to_sparse()}, [3]))
    with pytest.raises(TypeError, match=r"leaf \('a', 'word'\) is a NonTensorData: rows hold"):
        leaves_of(TensorDict({"a": {"word": NonTensorData("yes", [3])}}, [3]))


@pytest.mark.parametrize("flat", [3, {0: 1}, {(): 1}, {("a",): 1, ("a", "b"): 2}])
def test_nest_refuses_what_is_no_leaves_by_key(flat):
    with pytest.raises(TypeError, match="flat: expected tensors by key, each key a tuple"):
        nest(flat)


@pytest.mark.parametrize(("collect", "name"), [(tensors, "batch"), (leaves_of, "tensordict")])
def test_what_is_no_tensordict_has_no_leaves(collect, name):
    with pytest.raises(TypeError, match=rf"{name}: expected a tensordict, got 3 \(int\)"):
        collect(3)
