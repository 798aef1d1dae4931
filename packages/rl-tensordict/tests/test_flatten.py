from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rl_tensordict import leaves, nest, tensors


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
