from __future__ import annotations

import torch
from tensordict import TensorDict

from rl_layout import tensordict_fast


def source():
    return {"a": torch.zeros(3, 5), "next": {"b": torch.ones(3), "deep": {"c": torch.ones(3, 1)}}}


def test_the_fast_and_the_public_constructor_agree(monkeypatch):
    fast = tensordict_fast.build(source(), torch.Size([3]), ["time"])
    monkeypatch.setattr(tensordict_fast, "_unsafe", None)
    slow = tensordict_fast.build(source(), torch.Size([3]), ["time"])
    assert fast.names == slow.names == ["time"]
    assert fast["next"].batch_size == slow["next"].batch_size == (3,)
    assert (fast == slow).all()


def test_the_result_behaves_as_any_tensordict():
    made = tensordict_fast.build(source(), torch.Size([3]))
    assert isinstance(made, TensorDict)
    assert made[1:]["next", "deep", "c"].shape == (2, 1)
    assert made.reshape(3, 1)["a"].shape == (3, 1, 5)
    assert made.set("d", torch.zeros(3)).clone()["d"].shape == (3,)
