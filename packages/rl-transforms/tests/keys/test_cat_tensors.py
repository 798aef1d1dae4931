from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import CatTensors


def rows():
    return TensorDict(
        {
            "b": torch.ones(3, 2),
            "a": torch.zeros(3, 1),
            "next": {"b": torch.full((3, 2), 4.0), "a": torch.full((3, 1), 3.0)},
        },
        [3],
    )


def test_leaves_are_joined_in_key_order_at_the_root_and_under_next():
    batch = rows()
    joined = CatTensors(["b", "a"])(batch)
    assert joined["observation_vector"].tolist() == [[0, 1, 1]] * 3
    assert joined["next", "observation_vector"].tolist() == [[3, 4, 4]] * 3
    assert set(joined.keys(True, True)) == {"observation_vector", ("next", "observation_vector")}
    assert set(batch.keys()) == {"a", "b", "next"}


def test_unsorted_join_keeps_the_order_and_the_leaves():
    joined = CatTensors(["b", "a"], "all", sort=False, del_keys=False)(rows())
    assert joined["all"].tolist() == [[1, 1, 0]] * 3
    assert {"a", "b"} < set(joined.keys())


def test_out_key_can_be_an_in_key():
    joined = CatTensors(["a", "b"], "a")(rows().exclude("next"))
    assert joined["a"].shape == (3, 3)
    assert "b" not in joined


def test_rows_outside_the_mask_keep_joined_leaves():
    join = CatTensors(["a", "b"])
    root = rows().exclude("next").set("observation_vector", torch.full((3, 3), 7.0))
    found = join.reset(root, torch.tensor([True, False, True]))
    assert found["observation_vector"].tolist() == [[0, 1, 1], [7, 7, 7], [0, 1, 1]]
    assert list(found.keys()) == ["observation_vector"]


def test_specs_are_joined():
    spec = Composite(a=Bounded(0, 1, (3, 1)), b=Bounded(-2, 5, (3, 2)), shape=(3,))
    found = CatTensors(["a", "b"]).transform_observation_spec(spec)
    assert list(found.keys()) == ["observation_vector"]
    assert found["observation_vector"].space.high[0].tolist() == [1, 5, 5]
    spec["a"] = Unbounded((3, 1))
    found = CatTensors(["a", "b"], del_keys=False).transform_observation_spec(spec)
    assert found["observation_vector"].shape == (3, 3)
    assert len(found.keys()) == 3


def test_leaves_that_cannot_be_joined_are_refused():
    with pytest.raises(KeyError, match="'c' is missing: there are"):
        CatTensors(["a", "c"])(rows())
    with pytest.raises(KeyError, match="there is no observation 'c'"):
        CatTensors(["a", "c"]).transform_observation_spec(Composite(a=Unbounded((1,))))
    with pytest.raises(ValueError, match=r"one shape but for dimension -2.*'a': \[3, 1\]"):
        CatTensors(["a", "b"], dim=-2)(rows())
    with pytest.raises(ValueError, match="counted from the end"):
        CatTensors(["a"], dim=0)
