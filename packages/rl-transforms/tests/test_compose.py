from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torch import nn

from rl_layout.reference import ListRowSource
from rl_layout.testing import trajectories
from rl_specs import Composite, Unbounded
from rl_transforms import (
    CallableTransform,
    Compose,
    DTypeCastTransform,
    ExcludeTransform,
    InitTracker,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
    RenameTransform,
    RewardSum,
    SelectTransform,
    StepCounter,
    TensorDictPrimer,
    Transform,
    as_transform,
)


class Add(Transform):
    def __init__(self, number):
        super().__init__(["x"], None, ["x"])
        self.number = nn.Parameter(torch.tensor(float(number)))

    def apply_leaf(self, value):
        return (value + self.number).detach()

    def invert_leaf(self, value):
        return (value - self.number).detach()


class Times(Add):
    def apply_leaf(self, value):
        return (value * self.number).detach()

    def invert_leaf(self, value):
        return (value / self.number).detach()


def one(value=3.0):
    return TensorDict({"x": torch.full((5, 1), value)}, [5])


def test_outputs_pass_in_order_and_inputs_in_reverse():
    both = Compose(Add(1), Times(10))
    assert both(one())["x"].unique().item() == 40
    assert both.inv(both(one()))["x"].unique().item() == 3
    assert both.reset(one())["x"].unique().item() == 40
    assert both.step(one(), one())["x"].unique().item() == 40
    assert both.rows(one())["x"].unique().item() == 40


def test_members_are_in_the_order_of_append_and_insert():
    made = Compose(Times(10)).append(Add(5)).insert(0, Add(1)).insert(-1, Times(2))
    assert [type(member).__name__ for member in made] == ["Add", "Times", "Times", "Add"]
    assert made(one())["x"].unique().item() == (3 + 1) * 10 * 2 + 5
    assert len(made) == 4
    assert made[0].number == 1
    assert len(made[1:]) == 3
    assert isinstance(made[1:], Compose)
    with pytest.raises(IndexError, match="from -4 to 4: got 9"):
        made.insert(9, Add(1))


def test_flags_are_those_of_the_present_members():
    made = Compose(RewardSum())
    assert (made.online, made.needs_rows, made.side) == (False, False, "read")
    made.append(NextStateReconstructor())
    assert made.needs_rows
    assert made.places == {"buffer"}
    assert made.append(InitTracker()).online
    assert Compose(MultiStepTransform(3, 0.9)).side == "write"
    assert Compose(MultiStepTransform(3, 0.9), RewardSum()).side == "read"
    assert Compose().side == "read"
    assert Compose(NextObservationDelta()).rows_only


def test_split_steps_transforms_ahead_of_an_online_one():
    counter, init, total, delta = StepCounter(), InitTracker(), RewardSum(), NextObservationDelta()
    stepping, finishing = Compose(delta, Compose(counter, init), total).split()
    assert list(stepping) == [counter, init]
    assert list(finishing) == [delta, total]


def test_inverse_that_returns_none_stops_the_others():
    seen = []

    class Watch(Transform):
        def inv(self, batch):
            seen.append(batch)
            return batch

    class Hold(Transform):
        def inv(self, batch):
            return None

    assert Compose(Watch(), Hold()).inv(one()) is None
    assert not seen


def test_row_source_is_passed_to_members_that_need_rows():
    batch = trajectories([3]).exclude(("next", "observation"))
    batch["collector", "row"] = torch.arange(3)
    sample = batch[torch.tensor([1, 0])]
    made = Compose(lambda rows: rows, NextStateReconstructor())
    rebuilt = made(sample, ListRowSource(batch))
    assert rebuilt["next", "observation"][:, 1].tolist() == [2, 1]


def test_state_dict_holds_the_members():
    one_made, other = Compose(Add(1), Times(2)), Compose(Add(7), Times(9))
    other.load_state_dict(one_made.state_dict())
    assert other(one())["x"].unique().item() == 8


def test_specs_pass_in_order():
    both = Compose(RenameTransform(["a"], ["b"]), RenameTransform(["b"], ["c"]))
    spec = Composite(a=Unbounded((3,)), shape=(3,))
    for name in ("observation", "reward", "done"):
        assert list(getattr(both, f"transform_{name}_spec")(spec).keys()) == ["c"]
    inward = Compose(
        RenameTransform([], [], ["a"], ["b"]), DTypeCastTransform(torch.float32, torch.float64)
    )
    assert list(inward.transform_action_spec(spec).keys()) == ["b"]
    assert inward.transform_state_spec(spec)["b"].dtype == torch.float64


def test_place_is_refused_with_the_error_of_the_member():
    with pytest.raises(ValueError, match="NextObservationDelta cannot sit in a worker"):
        Compose(InitTracker(), NextObservationDelta()).check_place("worker")


def test_callable_does_not_change_the_caller_s_batch():
    def mark(batch):
        batch["new"] = torch.ones(5)
        batch["x"] = batch["x"] + 1
        return batch

    before = one()
    after = Compose(mark)(before)
    assert after["x"].unique().item() == 4
    assert before["x"].unique().item() == 3
    assert "new" not in before
    assert as_transform(mark).inv(before) is before


def test_callable_changes_only_rows_that_were_reset():
    mask = torch.tensor([True, False, False, True, False])
    double = CallableTransform(lambda batch: batch.apply(lambda leaf: leaf * 2))
    assert double.reset(one(), mask)["x"].flatten().tolist() == [6, 3, 3, 6, 3]
    assert double.reset(one())["x"].unique().item() == 6
    assert double.step(one(), one())["x"].unique().item() == 6


def test_non_transforms_are_refused():
    with pytest.raises(TypeError, match="Make an instance"):
        Compose(InitTracker)
    with pytest.raises(TypeError, match="expected a transform or a callable: got 3"):
        Compose(3)
    with pytest.raises(TypeError, match=r"one by one, or Compose\(\*them\)"):
        Compose([InitTracker(), InitTracker()])
    with pytest.raises(TypeError, match="expected a tensordict back, got NoneType"):
        Compose(lambda batch: None)(one())


def test_copies_and_pickles_behave_like_the_original():
    whole = Compose(InitTracker(), StepCounter(3), RewardSum(), MultiStepTransform(3, 0.9))
    for other in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert [type(member) for member in other] == [type(member) for member in whole]
        assert other.online


def test_callable_accepts_non_tensor_data():
    root = one().set("text", NonTensorData("hello", batch_size=[5]))
    same = CallableTransform(lambda batch: batch).reset(root, torch.zeros(5, dtype=torch.bool))
    assert same["text"] == "hello"


@pytest.mark.parametrize(
    ("owner", "key"),
    [
        (StepCounter(), "step_count"),
        (RewardSum(), "episode_reward"),
        (TensorDictPrimer(hidden=Unbounded((3,)), expand_specs=True), "hidden"),
    ],
)
@pytest.mark.parametrize("name", ["SelectTransform", "ExcludeTransform", "RenameTransform"])
def test_transform_that_drops_a_carried_entry_is_named_at_the_reset(owner, key, name):
    culprit = {
        "SelectTransform": SelectTransform("observation"),
        "ExcludeTransform": ExcludeTransform(key),
        "RenameTransform": RenameTransform([key], ["other"]),
    }[name]
    flags = {"done": torch.zeros(4, 1, dtype=torch.bool), "observation": torch.zeros(4, 2)}
    root = TensorDict(flags, [4])
    with pytest.raises(ValueError, match=rf"{name} drops '{key}', which {type(owner).__name__}"):
        Compose(owner, culprit).reset(root)
    if name != "RenameTransform":
        ahead = SelectTransform("observation") if name == "SelectTransform" else ExcludeTransform()
        assert key in Compose(ahead, owner).reset(root)
    with pytest.raises(KeyError, match=f"a transform after this one drops '{key}'"):
        owner.step(root, root.clone().set("reward", torch.ones(4, 1)))


def test_selection_that_names_carried_entries_is_accepted():
    flags = {"done": torch.zeros(4, 1, dtype=torch.bool), "observation": torch.zeros(4, 2)}
    both = Compose(StepCounter(), SelectTransform("observation", "step_count"))
    root = both.reset(TensorDict(flags, [4]))
    assert both.step(root, TensorDict(flags, [4]))["step_count"].flatten().tolist() == [1] * 4
    assert both.carried == ["step_count"]


def test_in_place_change_leaves_unmasked_rows_alone():
    class Doubled(Transform):
        def apply_leaf(self, value):
            return value.mul_(2)

    mask = torch.tensor([True, False])
    for double in (Doubled(["a"]), as_transform(lambda batch: batch.set("a", batch["a"].mul_(2)))):
        root = TensorDict({"a": torch.tensor([1.0, 3.0])}, [2])
        assert double.reset(root, mask)["a"].tolist() == [2, 3]
        assert root["a"].tolist() == [1, 3]


@pytest.mark.parametrize("state", [None, 3, "ab", {}, {"a": 1}, [1], [1, 2], [(None, None)]])
def test_write_states_are_those_that_it_returned(state):
    compose = Compose(MultiStepTransform(2, gamma=0.5), RewardSum())
    compose.restore_write_state(compose.write_state())
    with pytest.raises(TypeError, match=r"expected what write_state\(\) has returned, pairs"):
        compose.restore_write_state(state)
