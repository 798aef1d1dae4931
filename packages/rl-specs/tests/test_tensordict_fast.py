import pytest
import torch
from tensordict import TensorDict

from rl_specs import Composite, Unbounded, tensordict_fast
from rl_specs.tensordict_fast import new_tensordict


@pytest.mark.parametrize("unchecked", [tensordict_fast._unchecked, None], ids=["fast", "public"])
def test_both_constructors_make_the_same(monkeypatch, unchecked):
    monkeypatch.setattr(tensordict_fast, "_unchecked", unchecked)
    nested = new_tensordict({"x": torch.ones(5, 3)}, torch.Size((5,)))
    found = new_tensordict(
        {"obs": torch.zeros(5, 7), "nested": nested},
        torch.Size((5,)),
        torch.device("cpu"),
        ["time"],
    )
    plain = TensorDict({"obs": torch.zeros(5, 7), "nested": {"x": torch.ones(5, 3)}}, [5])
    assert (found == plain).all()
    assert found.batch_size == (5,)
    assert found.names == ["time"]
    assert found.device == torch.device("cpu")


def test_the_fast_constructor_is_there():
    assert tensordict_fast._unchecked is not None


def test_samples_are_ordinary_tensordicts():
    sample = Composite(obs=Unbounded((5, 3)), shape=(5,)).rand()
    sample["more"] = torch.zeros(5)
    assert sample[1:3].reshape(2, 1)["obs"].shape == (2, 1, 3)
    with pytest.raises(RuntimeError):
        sample["wrong"] = torch.zeros(3)
