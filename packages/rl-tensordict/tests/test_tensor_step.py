import pytest
import torch
from tensordict import NonTensorData, TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential, set_skip_existing
from torch import nn

from rl_tensordict import TensorStep, outputs_of, write_step
from rl_tensordict.tensor_step import is_ordinary


class Doubled(TensorStep, TensorDictModule):
    """Writes twice what its network returns; `shift` is of `forward` of tensordict alone."""

    def step(self, *tensors):
        return tuple(2 * one for one in outputs_of(self.module(*tensors), self.out_keys_source))

    def _call_module(self, tensors, **kwargs):
        return self.step(*tensors)


def doubled(network=lambda x: x[:, :1], out_keys=("value",)):
    return Doubled(network, ["observation"], list(out_keys))


def rows():
    return TensorDict({"observation": torch.arange(15.0).view(5, 3)}, [5])


def test_forward_adds_its_outputs_and_changes_no_entry():
    batch = rows()
    before = batch.clone()
    assert doubled()(batch) is batch
    assert (batch.exclude("value") == before).all()
    assert batch["value"].equal(2 * before["observation"][:, :1])


@pytest.mark.parametrize("kind", ["locked", "nested key", "data that is no tensor"])
def test_forward_writes_as_set_does(kind):
    key = ("group", "value") if kind == "nested key" else "value"
    module, batch = doubled(out_keys=[key]), rows()
    if kind == "locked":
        with pytest.raises(RuntimeError, match="lock"):
            module(batch.lock_())
    elif kind == "nested key":
        assert module(batch)["group"].batch_size == (5,)
    else:
        module.step = lambda x: (NonTensorData("word", [5]),)
        assert module(batch)["value"] == "word"


def test_tensordict_out_is_left_to_tensordict():
    batch, out = rows(), TensorDict({}, [5])
    doubled()(batch, tensordict_out=out)
    assert "value" in out
    assert "value" not in batch


def test_selected_out_keys_limit_the_outputs():
    module = doubled(lambda x: (x, x), ["a", "b"])
    module.select_out_keys("b")
    assert set(module(rows()).keys()) == {"observation", "b"}


def test_hooks_of_the_module_run():
    module, seen = doubled(), []
    module.register_forward_hook(lambda *_: seen.append(1))
    module(rows())
    assert seen == [1]


def test_keywords_are_left_to_tensordict():
    assert doubled()(observation=torch.zeros(5, 3)).shape == (5, 1)


def test_skipping_is_left_to_tensordict():
    calls = []
    module = doubled(lambda x: calls.append(1) or x[:, :1])
    batch = module(rows())
    with set_skip_existing(True):
        module(batch)
    assert calls == [1]


def test_step_of_the_base_class_raises():
    with pytest.raises(NotImplementedError):
        TensorStep().step()


def test_a_single_step_lists_itself():
    module = doubled()
    assert module.step_calls() == [(module.step, ["observation"], ["value"])]
    assert module.step_parts() is None
    assert module.takes_tensors()


def test_an_error_names_the_module_and_its_arguments_once():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        doubled(nn.Linear(7, 1))(rows())
    notes = [text for text in caught.value.__notes__ if "was given" in text]
    assert notes == [
        "Doubled was given a tensordict [5] of ['observation']. "
        "Compare their shapes and dtypes with the inputs of the network."
    ]


def test_a_missing_input_is_named():
    with pytest.raises(KeyError, match=r"'observation' is missing: there are a\b"):
        write_step(doubled(), TensorDict({"a": torch.zeros(5)}, [5]))


@pytest.mark.parametrize(
    "options",
    [
        {"inplace": False},
        {"inplace": None},
        {"inplace": "empty"},
        {"method": "forward"},
        {"method_kwargs": {"scale": 1}},
        {"get_kwargs": {"as_list": True}},
    ],
)
def test_modules_with_options_are_not_ordinary(options):
    plain = {"module": nn.Identity(), "in_keys": ["a"], "out_keys": ["b"]}
    assert is_ordinary(TensorDictModule(**plain))
    assert not is_ordinary(TensorDictModule(**plain, **options))


@pytest.mark.parametrize(
    "options", [{"inplace": False}, {"partial_tolerant": True}, {"selected_out_keys": ["b"]}]
)
def test_sequences_with_options_are_not_ordinary(options):
    part = TensorDictModule(nn.Identity(), ["a"], ["b"])
    assert is_ordinary(TensorDictSequential(part))
    assert not is_ordinary(TensorDictSequential(part, **options))


def test_outputs_of_takes_tensors_tuples_and_mappings():
    one, two = torch.zeros(1), torch.ones(1)
    assert outputs_of(one, ["a"]) == (one,)
    assert outputs_of((one, two), ["a", "b"]) == (one, two)
    assert outputs_of({"b": two, "a": one}, ["a", ("b",)]) == (one, two)
    assert outputs_of({("n", "b"): two}, [("n", "b")]) == (two,)
    assert outputs_of(None, []) == ()
    group = TensorDict({"loc": one}, [])
    assert outputs_of(group, [("parameters",)]) == (group,)
    assert outputs_of({"loc": one}, ["parameters"]) == ({"loc": one},)
    with pytest.raises(ValueError, match=r"each of \['a'\]: the network returned 2"):
        outputs_of((one, two), [("a",)])


def test_outputs_of_names_the_keys_that_a_mapping_lacks():
    with pytest.raises(KeyError, match=r"entry for each of \['a', 'b'\]: .* returned \['a'\]"):
        outputs_of({"a": 1}, ["a", "b"])
