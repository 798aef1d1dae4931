import pytest
import torch
from tensordict import TensorDict

from rl_specs import Binary, Composite, Unbounded
from rl_transforms import GroupDone

FLAG = Binary(shape=(4, 1), dtype=torch.bool)


def step(rows=(4,)):
    """Rows of three agents, the second of which is terminated."""
    flags = torch.arange(4).eq(1).reshape(4, 1).expand(*rows, 1)
    agents = TensorDict({"reward": torch.ones(*rows, 3, 1)}, [*rows, 3])
    return TensorDict({"agents": agents, "done": flags, "terminated": flags}, rows)


def test_group_members_get_the_flags_of_their_row():
    after = GroupDone("agents").step(step(), step())
    expected = [[False] * 3, [True] * 3, [False] * 3, [False] * 3]
    for name in ("done", "terminated"):
        assert after["agents", name].squeeze(-1).tolist() == expected
    assert ("agents", "truncated") not in after.keys(True)


def test_rows_are_written_at_the_root_and_under_next():
    given = step().set("next", step())
    batch = GroupDone(["agents"])(given)
    assert torch.equal(batch["agents", "done"], batch["next", "agents", "done"])
    assert ("agents", "done") not in given.keys(True)


def test_nested_groups_are_named_by_their_key():
    team = TensorDict({"reward": torch.ones(4, 2, 1)}, [4, 2])
    after = step().exclude("agents").set("teams", TensorDict({"red": team}, [4]))
    made = GroupDone([("teams", "red")]).step(after, after)
    assert made["teams", "red", "done"].shape == (4, 2, 1)


def test_flags_of_a_group_are_described_in_the_shape_of_its_reward():
    given = GroupDone("agents")
    reward = Composite(agents=Composite(reward=Unbounded((4, 3, 1)), shape=(4, 3)), shape=(4,))
    given.transform_reward_spec(reward)
    spec = given.transform_done_spec(Composite(done=FLAG, shape=(4,)))
    assert {spec["agents", name].shape for name in ("done", "terminated", "truncated")} == {
        (4, 3, 1)
    }
    assert spec["agents"].shape == (4, 3)


def test_group_with_flags_of_its_own_is_refused():
    given = GroupDone("agents")
    given.transform_reward_spec(Composite(agents={"reward": Unbounded((4, 1))}, shape=(4,)))
    with pytest.raises(ValueError, match="'agents' has done flags of its own"):
        given.transform_done_spec(Composite(agents={"done": FLAG}, shape=(4,)))


def test_group_without_a_reward_is_refused():
    with pytest.raises(ValueError, match="'agents' has no reward"):
        GroupDone("agents").transform_done_spec(Composite(done=FLAG, shape=(4,)))


def test_empty_list_of_groups_is_refused():
    with pytest.raises(ValueError, match="key of a group"):
        GroupDone([])


def test_members_known_from_the_spec_only_get_flags():
    given = GroupDone("agents")
    reward = Composite(agents=Composite(reward=Unbounded((4, 3, 1)), shape=(4, 3)), shape=(4,))
    given.transform_reward_spec(reward)
    for rows in ((4,), (4, 5)):
        plain = {"agents": {"observation": torch.zeros(*rows, 3, 2)}}
        root = TensorDict(plain | {"done": torch.ones(*rows, 1, dtype=torch.bool)}, rows)
        assert given.reset(root)["agents", "done"].shape == (*rows, 3, 1)
