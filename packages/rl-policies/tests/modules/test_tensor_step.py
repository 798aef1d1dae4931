import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, set_skip_existing
from torch import nn

from rl_policies import ValueOperator
from rl_policies.modules.tensor_step import TensorStep, ordinary, outputs_of, read


def rows():
    return TensorDict({"observation": torch.randn(5, 3)}, [5])


def test_forward_adds_its_outputs_and_changes_no_entry():
    batch = rows()
    before = batch.clone()
    ValueOperator(nn.Linear(3, 1))(batch)
    assert (batch.exclude("state_value") == before).all()


def test_tensordict_out_is_left_to_tensordict():
    batch, out = rows(), TensorDict({}, [5])
    ValueOperator(nn.Linear(3, 1))(batch, tensordict_out=out)
    assert "state_value" in out
    assert "state_value" not in batch


def test_selected_out_keys_limit_the_outputs():
    critic = ValueOperator(lambda x: (x, x), out_keys=["a", "b"])
    critic.select_out_keys("b")
    assert set(critic(rows()).keys()) == {"observation", "b"}


def test_hooks_of_the_module_run():
    critic, seen = ValueOperator(nn.Linear(3, 1)), []
    critic.register_forward_hook(lambda *_: seen.append(1))
    critic(rows())
    assert seen == [1]


def test_keywords_are_left_to_tensordict():
    critic = ValueOperator(nn.Linear(3, 1))
    assert critic(observation=torch.zeros(5, 3)).shape == (5, 1)


def test_skipping_is_left_to_tensordict():
    calls = []
    critic = ValueOperator(lambda x: calls.append(1) or x[:, :1])
    batch = critic(rows())
    with set_skip_existing(True):
        critic(batch)
    assert calls == [1]


def test_step_of_the_base_class_raises():
    with pytest.raises(NotImplementedError):
        TensorStep().step()


@pytest.mark.parametrize(
    "options",
    [
        {"inplace": False},
        {"inplace": "empty"},
        {"method": "forward"},
        {"method_kwargs": {"scale": 1}},
        {"get_kwargs": {"as_list": True}},
    ],
)
def test_modules_with_options_are_not_ordinary(options):
    plain = {"module": nn.Identity(), "in_keys": ["a"], "out_keys": ["b"]}
    assert ordinary(TensorDictModule(**plain))
    assert not ordinary(TensorDictModule(**plain, **options))


def test_read_of_a_missing_key_lists_the_keys():
    with pytest.raises(KeyError, match=r"\('a', 'b'\) is missing: there are observation"):
        read(rows(), ("a", "b"))


def test_outputs_of_takes_tensors_tuples_and_mappings():
    one, two = torch.zeros(1), torch.ones(1)
    assert outputs_of(one, ["a"]) == (one,)
    assert outputs_of((one, two), ["a", "b"]) == (one, two)
    assert outputs_of({"b": two, "a": one}, ["a", "b"]) == (one, two)
    with pytest.raises(ValueError, match="returned 2"):
        outputs_of((one, two), ["a"])
