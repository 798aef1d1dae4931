from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_specs import Categorical, Composite, Unbounded
from rl_transforms import Compose, StepCounter, TensorDictPrimer


def hidden(*shape):
    return Unbounded((*shape, 7))


def empty():
    return TensorDict({}, [3])


def test_reset_adds_zeros_of_the_batch_size():
    root = TensorDictPrimer(h=hidden(), expand_specs=True).reset(empty())
    assert root["h"].shape == (3, 7)
    assert not root["h"].any()


def test_partial_reset_writes_masked_rows_only():
    primer = TensorDictPrimer(h=hidden(), expand_specs=True, default_value=2.0)
    root = TensorDict({"h": torch.full((3, 7), 5.0)}, [3])
    again = primer.reset(root, torch.tensor([False, True, False]))
    assert again["h"][:, 6].tolist() == [5, 2, 5]
    assert root["h"].unique().item() == 5


def test_step_carries_entries_without_a_policy_output():
    primer = TensorDictPrimer({("net", "h"): hidden(3), "c": hidden(3)})
    root = primer.reset(empty())
    root["c"] = torch.ones(3, 7)
    written = TensorDict({"net": {"h": torch.full((3, 7), 4.0)}}, [3])
    after = primer.step(root, written)
    assert after["net", "h"].unique().item() == 4
    assert after["c"] is root["c"]
    assert "c" not in written


def test_defaults_are_numbers_tensors_or_callables_by_key():
    calls = iter(range(5, 9))
    primer = TensorDictPrimer(
        {"a": hidden(3), "b": {"c": hidden(3)}, "d": hidden(3), "e": Categorical(4, (3,))},
        default_value={
            "a": torch.arange(7.0),
            ("b", "c"): lambda: torch.full((3, 7), float(next(calls))),
            "e": 2,
        },
    )
    root = primer.reset(empty())
    assert root["a"].tolist() == [list(range(7))] * 3
    assert root["b", "c"].unique().item() == 5
    assert primer.reset(empty())["b", "c"].unique().item() == 6
    assert not root["d"].any()
    assert root["e"].dtype == torch.int64
    assert root["e"].tolist() == [2, 2, 2]


def test_defaults_nest_like_their_specs():
    nested = TensorDictPrimer({"b": {"c": hidden(3)}}, default_value={"b": {"c": 3.0}})
    assert nested.reset(empty())["b", "c"].unique().item() == 3


def test_one_callable_can_make_all_entries():
    made = TensorDict({"a": torch.ones(7), "b": {"c": torch.ones(7)}}, [])
    primer = TensorDictPrimer(
        {"a": hidden(3), "b": {"c": hidden(3)}},
        default_value=lambda: made,
        single_default_value=True,
    )
    assert primer.reset(empty())["b", "c"].sum() == 21
    made.pop("a")
    with pytest.raises(KeyError, match="made no 'a'"):
        primer.reset(empty())


def test_callable_is_called_for_each_entry():
    primer = TensorDictPrimer({"a": hidden(3), "b": hidden(3)}, default_value=lambda: torch.rand(7))
    root = primer.reset(empty())
    assert not torch.equal(root["a"], root["b"])


def test_random_entries_are_members_of_their_specs():
    primer = TensorDictPrimer(e=Categorical(4, (3, 500)), random=True)
    assert primer.reset(empty())["e"].unique().tolist() == [0, 1, 2, 3]


def test_specs_have_the_entries_on_both_sides():
    primer = TensorDictPrimer({("net", "h"): hidden()}, expand_specs=True)
    for name in ("observation", "state"):
        spec = Composite(shape=(3,))
        described = getattr(primer, f"transform_{name}_spec")(spec)
        assert described["net", "h"].shape == (3, 7)
        assert len(spec.keys()) == 0
    assert primer.transform_action_spec(spec) is spec


def test_specs_that_have_the_batch_size_are_not_expanded():
    primers = Composite(h=hidden(3), shape=(3,))
    assert TensorDictPrimer(primers, expand_specs=True).reset(empty())["h"].shape == (3, 7)
    same_size = TensorDictPrimer(h=Unbounded((3,)), expand_specs=True)
    assert same_size.reset(empty())["h"].shape == (3, 3)


def test_forward_adds_missing_entries():
    batch = trajectories([5])
    primed = TensorDictPrimer(h=hidden(), action=Unbounded((1,)), expand_specs=True)(batch)
    assert primed["h"].shape == (5, 7)
    assert primed["action"] is batch["action"]
    assert TensorDictPrimer(action=Unbounded((5, 1)))(batch) is batch


def test_defaults_are_never_shared_between_resets():
    value = torch.zeros(3, 7)
    root = TensorDictPrimer(h=hidden(3), default_value=value).reset(empty())
    root["h"] += 1
    assert not value.any()


def test_specs_and_defaults_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"'h' has shape \[7\], the batch \[3\]: .*expand_specs"):
        TensorDictPrimer(h=hidden()).reset(empty())
    with pytest.raises(TypeError, match="one of the two"):
        TensorDictPrimer()
    with pytest.raises(TypeError, match="one of the two"):
        TensorDictPrimer({"a": hidden()}, b=hidden())
    with pytest.raises(ValueError, match="leave default_value"):
        TensorDictPrimer(h=hidden(), random=True, default_value=1.0)
    with pytest.raises(TypeError, match="needs a callable"):
        TensorDictPrimer(h=hidden(), single_default_value=True)
    with pytest.raises(KeyError, match="'g', which is not primed"):
        TensorDictPrimer(h=hidden(), default_value={"g": 1.0})
    with pytest.raises(ValueError, match=r"'h': expected shape \[3, 7\] or \[7\], got \[2\]"):
        TensorDictPrimer(h=hidden(3), default_value=torch.ones(2)).reset(empty())
    with pytest.raises(TypeError, match=r"'h': expected torch.float32, got torch.int64"):
        TensorDictPrimer(h=hidden(3), default_value=torch.ones(7, dtype=torch.int64)).reset(empty())
    with pytest.raises(KeyError, match=r"'h' is missing.*Call reset first"):
        TensorDictPrimer(h=hidden(3)).step(empty(), empty())


def test_environment_without_batch_dimensions_is_primed():
    primer = TensorDictPrimer(h=hidden(), default_value=1.0)
    root = primer.reset(TensorDict({}, []))
    assert root["h"].tolist() == [1] * 7
    assert primer.reset(root, torch.tensor(True))["h"].tolist() == [1] * 7


def test_entries_can_be_added_before_the_environment_resets():
    primer = TensorDictPrimer(
        goal=Unbounded((3,)), expand_specs=True, default_value=2.0, call_before_env_reset=True
    )
    both = Compose(primer, StepCounter())
    request = both.before_reset(TensorDict({}, [4]))
    assert request["goal"].unique().tolist() == [2]
    asked = TensorDict({"goal": torch.full((4, 3), 7.0)}, [4])
    mask = torch.tensor([False, True, False, False])
    request = both.before_reset(asked, mask)
    assert request["goal"][:, 0].tolist() == [7, 2, 7, 7]
    assert primer.reset(request, mask) is request  # the environment may have changed it
    with pytest.raises(KeyError, match="'goal' did not come back from the reset"):
        primer.reset(TensorDict({}, [4]))


def test_entries_are_added_after_the_reset_by_default():
    primer = TensorDictPrimer(goal=Unbounded((3,)), expand_specs=True)
    request = TensorDict({}, [4])
    assert primer.before_reset(request) is request
    assert TensorDictPrimer(goal=Unbounded((3,)), reset_key="_reset").call_before_env_reset is False


def test_other_reset_keys_are_refused():
    with pytest.raises(ValueError, match=r"reset_key: expected '_reset' or None, got \('agents'"):
        TensorDictPrimer(goal=Unbounded((3,)), reset_key=("agents", "_reset"))
