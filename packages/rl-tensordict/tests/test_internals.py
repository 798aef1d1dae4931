"""What the fast ways need of tensordict: red here means slow elsewhere, never wrong."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, TensorDictSequential
from torch import nn

from rl_tensordict import ModuleCalls, build_flat, construction, internals


def test_this_version_has_a_constructor_without_checks():
    assert internals.new_unsafe is not None


def test_this_version_keeps_entries_in_a_dictionary():
    assert internals.HAS_STORE


def test_this_version_tells_whether_dimensions_have_names():
    assert internals.HAS_NAMES_FLAG


def test_this_version_has_the_attributes_that_are_set():
    assert build_flat is construction.assembled


def test_a_tensordict_of_other_attributes_is_not_the_same():
    made = construction.assembled({}, torch.Size([5]))
    assert internals.is_same(made, TensorDict({}, [5]))
    made._one_more = None
    assert not internals.is_same(made, TensorDict({}, [5]))


def test_forward_of_this_version_hands_on_to_the_methods_that_are_compared():
    assert internals.is_stock_module(TensorDictModule)
    assert internals.is_stock_sequence(TensorDictSequential)
    # private: what the version of tensordict is asked for
    assert callable(TensorDictModule._call_module)
    assert callable(TensorDictModule._write_to_tensordict)
    assert callable(TensorDictSequential._run_module)


def test_modules_of_this_version_keep_their_options_where_they_are_read():
    module = TensorDictModule(nn.Identity(), ["a"], ["b"], method="forward", method_kwargs={"x": 1})
    named = TensorDictModule(lambda *, x: x, {"x": "a"}, ["b"], get_kwargs={"as_list": True})
    sequence = TensorDictSequential(module, selected_out_keys=["b"], partial_tolerant=True)
    assert {"method", "method_kwargs", "inplace"} <= vars(module).keys()
    assert {"_kwargs", "_get_kwargs"} <= vars(named).keys()
    assert vars(sequence)["_select_before_return"]
    assert vars(sequence)["partial_tolerant"]
    assert vars(sequence)["inplace"] is None
    assert "_requires_sample" in vars(ProbabilisticTensorDictSequential(module))
    assert vars(named)["_out_keys"] == ["b"]
    assert vars(named.select_out_keys("b"))["_out_keys_apparent"] == ["b"]


def test_hooks_of_this_version_are_in_the_dictionaries_that_are_watched():
    module = TensorDictModule(nn.Identity(), ["a"], ["b"])
    assert ModuleCalls(module).is_flat
    kinds = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    for kind in kinds:
        handle = getattr(module, f"register_{kind}")(lambda *_: None)
        assert "it has hooks" in ModuleCalls(module).reason
        handle.remove()
