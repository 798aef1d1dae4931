import pytest
import torch

from rl_specs import (
    Bounded,
    Categorical,
    Composite,
    OneHot,
    Stacked,
    StackedComposite,
    Unbounded,
    stack_specs,
)


def test_equal_specs_become_one():
    spec = Bounded(torch.arange(3.0), 9)
    assert torch.stack([spec] * 5) == spec.expand(5, 3)
    assert torch.stack([spec] * 5, 1).shape == torch.stack([spec] * 5, -1).shape == (3, 5)
    assert torch.stack([Composite(a=spec)] * 5)["a"].shape == (5, 3)


def test_specs_that_differ_stay_apart():
    assert isinstance(torch.stack([Categorical(2), Categorical(3)]), Stacked)
    assert isinstance(torch.stack([Composite(), Composite(a=Unbounded())]), StackedComposite)


def test_composites_without_a_device_follow_the_others():
    spec = torch.stack([Composite(a=None), Composite(b=None, device="meta")])
    assert [part.device.type for part in spec.specs] == ["meta", "meta"]


def test_stack_refuses_specs_that_do_not_fit():
    with pytest.raises(TypeError, match="of one class"):
        torch.stack([Unbounded((3,)), Categorical(3)])
    with pytest.raises(ValueError, match="one dtype"):
        torch.stack([Unbounded((3,)), Unbounded((3,), dtype=torch.float64)])
    with pytest.raises(ValueError, match="one device"):
        torch.stack([Unbounded((3,)), Unbounded((3,), device="meta")])
    with pytest.raises(ValueError, match="one ndim"):
        torch.stack([Unbounded((3,)), Unbounded((5, 3))])
    with pytest.raises(ValueError, match="one shape"):
        torch.stack([Composite(), Composite(shape=(5,))])
    with pytest.raises(ValueError, match="empty list"):
        stack_specs([])


def test_the_domain_stays_last():
    with pytest.raises(ValueError, match="cannot stack after the last dimension of OneHot"):
        torch.stack([OneHot(2), OneHot(2, mask=[True, False])], -1)
    with pytest.raises(ValueError, match="dimension 7 is out of range"):
        torch.stack([Unbounded((3,))] * 2, 7)


def test_there_is_no_out():
    with pytest.raises(NotImplementedError, match="leave out"):
        torch.stack([Unbounded()], 0, out=Unbounded())


@pytest.mark.parametrize("count", [2, 3])
def test_a_stack_after_the_domain_is_refused_for_equal_and_unequal_specs(count):
    specs = [OneHot(3), OneHot(count)]
    with pytest.raises(ValueError, match="cannot stack after the last dimension of OneHot"):
        torch.stack(specs, 1)
