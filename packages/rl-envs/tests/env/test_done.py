import pytest
import torch
from tensordict import TensorDict

from rl_envs.env.done import complete_done_spec, derive_flags, ends, groups_of
from rl_envs.env.layout import EnvLayout
from rl_specs import Binary, Composite

YES, NO = torch.tensor([True]), torch.tensor([False])
FLAG = Binary(shape=(1,), dtype=torch.bool)


@pytest.mark.parametrize(
    ("given", "done_terminated_truncated"),
    [
        ({"done": YES}, [True, True, False]),
        ({"terminated": YES}, [True, True, False]),
        ({"truncated": YES}, [True, False, True]),
        ({"truncated": NO}, [False, False, False]),
        ({"terminated": YES, "truncated": YES}, [True, True, True]),
        ({"done": YES, "terminated": NO}, [True, False, True]),
    ],
)
def test_missing_flags_follow_from_those_that_are_there(given, done_terminated_truncated):
    assert [flag.item() for flag in derive_flags(given, (), "step")] == done_terminated_truncated


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, KeyError, "'done'.*is missing"),
        ({"done": YES, "truncated": YES}, ValueError, "do not tell whether the task ended"),
        ({"done": NO, "terminated": YES}, ValueError, "must be terminated or truncated"),
        ({"done": YES, "terminated": NO, "truncated": NO}, ValueError, "must be terminated"),
    ],
)
def test_flags_that_do_not_tell_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        derive_flags(given, (), "step")


def test_each_group_is_completed():
    step = TensorDict({"a": {"terminated": NO}, "b": {"done": YES}})
    EnvLayout.complete_done(step, [("a",), ("b",)], "step")
    assert not step["a", "done"].item()
    assert step["b", "terminated"].item()


def test_a_group_without_any_flag_is_named():
    with pytest.raises(KeyError, match=r"\('a', 'done'\)"):
        EnvLayout.complete_done(TensorDict(), [("a",)], "step")


def test_specs_are_completed_and_not_changed():
    given = Composite(agents=Composite(done=FLAG))
    spec = complete_done_spec(given)
    assert set(spec["agents"].keys()) == {"done", "terminated", "truncated"}
    assert list(given["agents"].keys()) == ["done"]


def test_the_root_alone_decides_where_it_has_a_flag():
    groups = groups_of([("agents", "done"), ("done",)])
    step = TensorDict({"done": NO, "agents": {"done": YES}})
    assert ends(step, groups) == {(): NO}
    assert set(ends(step, [("agents",)])) == {("agents",)}


def test_flags_that_may_not_be_looked_at_follow_from_the_others():
    done, terminated = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    either, _, truncated = derive_flags(
        {"done": done, "terminated": terminated}, (), "step", waits=False
    )
    assert (either.tolist(), truncated.tolist()) == ([True, True, False], [False, True, False])
    flags = {"done": ~done, "terminated": terminated, "truncated": truncated}
    assert derive_flags(flags, (), "step", waits=False)[0].tolist() == [True, True, False]
