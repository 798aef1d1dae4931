import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rl_specs import Composite, NonTensor


def test_rand_gives_the_example():
    spec = NonTensor((5,), example_data={"a": 1})
    for value in (spec.rand(), spec.zero(), spec.one()):
        assert value.data == {"a": 1}
        assert value.batch_size == (5,)


def test_batched_objects_are_stacked():
    assert NonTensor((2, 3), example_data="a", batched=True).rand().tolist() == [["a"] * 3] * 2
    for value in (
        NonTensor((2, 3), example_data="a", feature_dims=1).rand(),
        NonTensor((3,), example_data="a").rand((2,)),
    ):
        assert [(part.data, part.batch_size) for part in value.tensordicts] == [("a", (3,))] * 2


def test_batched_and_feature_dims_exclude_each_other():
    with pytest.raises(ValueError, match="not both"):
        NonTensor(batched=True, feature_dims=1)


def test_anything_but_a_tensor_is_a_member():
    spec = NonTensor((5,))
    assert all(
        spec.is_in(value) for value in ("a", None, 3, [1], NonTensorData("a", batch_size=[5]))
    )
    assert not any(
        spec.is_in(value)
        for value in (torch.zeros(5), TensorDict({}, [5]), NonTensorData("a", batch_size=[3]))
    )


def test_encode_wraps_and_to_numpy_unwraps():
    spec = NonTensor((5,))
    value = spec.encode("a")
    assert value.batch_size == (5,)
    assert spec.to_numpy(value) == "a"
    assert spec.encode(value) is value
    assert NonTensor((2,), batched=True).to_numpy(NonTensor((2,), batched=True).encode("a")) == [
        "a",
        "a",
    ]


def test_a_composite_holds_objects():
    spec = Composite(text=NonTensor((), example_data="go"), shape=())
    assert spec.rand()["text"] == "go"
    assert spec.is_in(TensorDict({"text": "left"}, []))
    assert spec.is_in(spec.encode({"text": "left"}))


def test_examples_are_compared():
    assert NonTensor(example_data=np.zeros(3)) == NonTensor(example_data=np.zeros(3))
    assert NonTensor(example_data=np.zeros(3)) != NonTensor(example_data=np.ones(3))
    assert NonTensor(example_data="a") != NonTensor(example_data="b")


def test_the_device_may_be_forgotten():
    spec = NonTensor(device="cpu")
    assert spec.to("meta").device.type == "meta"
    assert spec.clear_device_().device is None
    assert spec.to(torch.float32) is spec


def test_nothing_can_be_projected_or_counted():
    with pytest.raises(NotImplementedError, match="no object is nearer"):
        NonTensor().project(torch.zeros(1))
    with pytest.raises(NotImplementedError, match="Python objects"):
        NonTensor().cardinality()
    NonTensor().type_check("a")


def test_an_expanded_spec_equals_one_made_so():
    assert NonTensor((2,), example_data="x").expand(3, 2) == NonTensor((3, 2), example_data="x")
    assert NonTensor((2,), example_data="x") != NonTensor((2,), example_data="x", batched=True)
    expanded = NonTensor((2,), example_data=np.zeros(3)).expand(3, 2)
    assert expanded == NonTensor((3, 2), example_data=np.zeros(3))


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ([np.zeros(3)], [np.zeros(3)], [np.ones(3)]),
        ({"a": torch.zeros(3)}, {"a": torch.zeros(3)}, {"a": torch.zeros(3).long()}),
        ((1, [torch.zeros(3)]), (1, [torch.zeros(3)]), (1, [torch.zeros(2)])),
        (np.array([1, None]), np.array([1, None]), np.array([1, 2])),
        ("x", "x", np.zeros(3)),
        (np.zeros(3), np.zeros(3), "x"),
        (np.zeros(3), np.zeros(3), torch.zeros(3)),
    ],
)
def test_examples_that_hold_arrays_are_compared(one, same, other):
    assert NonTensor(example_data=one) == NonTensor(example_data=same)
    assert NonTensor(example_data=one) != NonTensor(example_data=other)
