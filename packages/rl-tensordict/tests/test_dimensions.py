from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack

from rl_tensordict import Dimensions, Group


def agents(*sizes):
    return TensorDict({"seen": torch.zeros(*sizes, 3)}, sizes)


def named_batch():
    """A batch [2, 4] of teams [3] of agents [5], with a group and an entry that have no own."""
    inner = agents(2, 4, 3, 5)
    teams = TensorDict({"agents": inner, "score": torch.zeros(2, 4, 3)}, [2, 4, 3])
    plain = TensorDict({"reward": torch.zeros(2, 4, 1)}, [2, 4])
    batch = TensorDict({"teams": teams, "next": plain, "note": NonTensorData("x")}, [2, 4])
    teams.names = [None, None, "team"]
    inner.names = [None, None, "team", "agent"]
    batch.names = ["env", "time"]
    return batch


def test_groups_are_those_with_sizes_of_their_own():
    names, groups = Dimensions.of(named_batch())
    assert names == ["env", "time"]
    assert sorted(groups) == [
        Group(("teams",), [3], ["team"]),
        Group(("teams", "agents"), [3, 5], ["team", "agent"]),
    ]


def test_a_batch_of_the_same_leaves_gets_names_and_sizes_back():
    batch = named_batch()
    again = TensorDict(batch.to_dict(), [2, 4])
    assert Dimensions.of(batch).give(again) is again
    assert Dimensions.of(again) == Dimensions.of(batch)
    assert again["teams", "agents"].names == ["env", "time", "team", "agent"]


def test_groups_of_a_batch_of_another_shape_follow_its_own_dimensions():
    batch = named_batch()
    flat = TensorDict(batch.to_dict(), [2, 4]).flatten(0, 1)
    flat.names = ["time"]
    Dimensions.of(batch).give_groups(flat)
    assert flat["teams", "agents"].batch_size == (8, 3, 5)
    assert flat["teams", "agents"].names == ["time", "team", "agent"]
    assert flat["next"].batch_size == (8,)


def test_groups_that_a_batch_lacks_are_left_out():
    batch = named_batch()
    rest = TensorDict(batch.exclude("teams").to_dict(), [2, 4])
    assert Dimensions.of(Dimensions.of(batch).give(rest)) == (["env", "time"], [])


def test_groups_of_a_lazy_stack_are_read_without_its_leaves():
    rows = [TensorDict({"seen": torch.zeros(size), "agents": agents(3)}) for size in (1, 2)]
    assert Dimensions.of(lazy_stack(rows)).groups == [Group(("agents",), [3], [None])]


def test_leaves_of_other_sizes_are_refused():
    other = TensorDict({"teams": {"score": torch.zeros(2, 4, 1)}}, [2, 4])
    with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
        Dimensions.of(named_batch()).give(other)
