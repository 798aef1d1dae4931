import copy
import pickle

import pytest

from rl_specs import Composite, Unbounded


def tree():
    return Composite(next=Composite(obs=Unbounded((3,))), action=Unbounded((7,)))


def test_a_locked_spec_refuses_changes():
    spec = tree().lock_()
    changes = [
        lambda: spec.set("x", Unbounded()),
        lambda: spec.update({"x": Unbounded()}),
        lambda: spec.pop("action"),
        lambda: spec.__delitem__("action"),
        lambda: spec["next"].set("x", Unbounded()),
        lambda: spec.__setitem__(("next", "x"), Unbounded()),
        lambda: setattr(spec, "names", []),
        lambda: setattr(spec, "shape", ()),
    ]
    for change in changes:
        with pytest.raises(RuntimeError, match="this spec is locked"):
            change()
    assert spec == tree()


def test_unlocking_allows_changes_again():
    spec = tree().lock_().unlock_()
    spec["next", "x"] = Unbounded()
    assert not spec.is_locked
    assert not spec["next"].locked


def test_a_lock_may_leave_out_what_is_nested():
    spec = tree().lock_(recurse=False)
    assert spec.is_locked
    assert not spec["next"].is_locked


def test_spec_locked_with_its_parent_is_unlocked_with_it():
    spec = tree().lock_()
    with pytest.raises(RuntimeError, match="unlock that one instead"):
        spec["next"].unlock_()
    inner = spec["next"]
    del spec
    assert not inner.unlock_().is_locked


def test_spec_of_two_locked_parents_stays_locked_until_both_unlock():
    inner = Composite(obs=Unbounded((3,)))
    one, two = Composite(inner=inner).lock_(), Composite(inner=inner).lock_()
    one.unlock_()
    assert inner.is_locked
    two.unlock_()
    assert not inner.is_locked


def test_the_lock_can_be_set_as_an_attribute():
    spec = tree()
    spec.is_locked = True
    assert spec["next"].is_locked
    spec.is_locked = False
    assert not spec["next"].is_locked


def test_clones_are_unlocked_and_pickles_stay_locked():
    spec = tree().lock_()
    assert not spec.clone().is_locked
    assert not spec.expand(5).is_locked
    assert not spec.to("meta")["next"].is_locked
    for other in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec)):
        assert other.is_locked
        assert not other.unlock_().is_locked
