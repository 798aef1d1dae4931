import pytest
import torch
from tensordict import TensorDict

from rl_transforms import PolicyAgeFilter


def rows(*versions):
    held = {"a": torch.arange(len(versions)), "collector": {}}
    held["collector"]["policy_version"] = torch.tensor(versions)
    return TensorDict(held, [len(versions)])


def test_rows_are_left_out_as_the_version_moves_on():
    now = [3]
    change = PolicyAgeFilter(lambda: now[0], max_policy_lag=2)
    batch = rows(0, 1, 3, 4)
    assert change(batch)["a"].tolist() == [1, 2, 3]
    now[0] = 5
    assert change(batch)["a"].tolist() == [2, 3]
    assert change.inv(batch)["a"].tolist() == [2, 3]
    now[0] = 9
    assert change.inv(batch) is None
    assert len(change(batch)) == 0
    assert len(batch) == 4


def test_nothing_changes_where_all_is_recent_or_nothing_says_otherwise():
    batch = rows(3, 3)
    assert PolicyAgeFilter(3, 0)(batch) is batch
    plain = TensorDict({"a": torch.zeros(2)}, [2])
    assert PolicyAgeFilter(3, 0)(plain) is plain
    with pytest.raises(KeyError, match=r"'policy_version'. is missing"):
        PolicyAgeFilter(3, 0, strict=True)(plain)


def test_rows_of_several_dimensions_become_flat():
    batch = TensorDict({"v": torch.tensor([[0, 5, 5], [5, 0, 5]])}, [2, 3])
    found = PolicyAgeFilter(5, 1, policy_version_key="v")(batch)
    assert found["v"].tolist() == [5, 5, 5, 5]


def test_bad_arguments():
    with pytest.raises(TypeError, match="current_version"):
        PolicyAgeFilter(1.5, 0)
    with pytest.raises(ValueError, match="max_policy_lag"):
        PolicyAgeFilter(1, -1)
    with pytest.raises(TypeError, match="a function that returns a whole number"):
        PolicyAgeFilter(lambda: None, 0)(rows(1))
    with pytest.raises(ValueError, match="cannot sit in an environment"):
        PolicyAgeFilter(1, 0).check_place("environment")
