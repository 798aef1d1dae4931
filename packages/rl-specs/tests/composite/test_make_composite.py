import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, tensorclass

from rl_specs import NonTensor, Unbounded, make_composite_from_td


def data():
    entries = {"obs": torch.zeros(5, 3), "next": {"done": torch.zeros(5, 1, dtype=torch.bool)}}
    return TensorDict(entries, [5])


def test_every_tensor_is_unbounded():
    spec = make_composite_from_td(data())
    assert spec.shape == spec["next"].shape == (5,)
    assert spec["obs"] == Unbounded((5, 3))
    assert spec["next", "done"].dtype == torch.bool
    assert spec.is_in(data())
    assert (spec.zero() == data()).all()


def test_scalars_get_a_dimension_unless_told_otherwise():
    scalar = TensorDict(a=torch.tensor(1.0))
    assert make_composite_from_td(scalar)["a"].shape == (1,)
    assert make_composite_from_td(scalar, unsqueeze_null_shapes=False)["a"].shape == ()


def test_the_last_dimension_may_be_dynamic():
    spec = make_composite_from_td(data(), dynamic_shape=True)
    assert spec["obs"].shape == (5, -1)
    assert spec.is_in(TensorDict({"obs": torch.zeros(5, 9), "next": data()["next"]}, [5]))


def test_objects_become_examples():
    stack = NonTensorStack(NonTensorData("a"), NonTensorData("b"))
    td = TensorDict({"text": "go", "many": stack}, [])
    spec = make_composite_from_td(td)
    assert isinstance(spec["text"], NonTensor)
    assert spec["text"].example_data == "go"
    assert spec["many"].shape == (2,)
    assert spec["many"].example_data == "a"
    assert spec.is_in(td)


def test_the_class_of_a_tensorclass_is_kept():
    @tensorclass
    class Step:
        obs: torch.Tensor

    step = Step(obs=torch.zeros(5, 3), batch_size=[5])
    assert isinstance(make_composite_from_td(step).rand(), Step)
    assert make_composite_from_td(step).is_in(step)


@pytest.mark.parametrize("wrong", [{}, torch.zeros(3), NonTensorData("a")], ids=type)
def test_only_tensordicts_will_do(wrong):
    with pytest.raises(TypeError, match="expected a tensordict"):
        make_composite_from_td(wrong)
