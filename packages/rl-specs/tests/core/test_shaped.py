import numpy as np
import pytest
import torch

from rl_specs import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, Unbounded

T, B, H = 5, 3, 7


def test_expand_adds_and_repeats_dimensions():
    spec = Bounded(torch.arange(3.0).reshape(3, 1), 9, (3, 1))
    found = spec.expand(5, 3, 7)
    assert found.shape == (5, 3, 7)
    assert torch.equal(found.low, spec.low.expand(5, 3, 7))
    assert found == spec.expand((5, 3, 7)) == spec.expand([5, -1, 7])


def test_expand_can_add_a_dynamic_dimension():
    assert Unbounded((3,)).expand(-1, 3).shape == (-1, 3)
    assert Composite(obs=OneHot(4)).expand(-1)["obs"].shape == (-1, 4)


def test_expand_refuses_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"shape \(3,\) cannot be expanded to \(4,\)"):
        Unbounded((3,)).expand(4)
    with pytest.raises(ValueError, match=r"must match the existing size \(-1\)"):
        Unbounded((-1,)).expand(4)


def test_reshape_view_flatten_and_unflatten_agree_with_torch():
    spec = Bounded(torch.arange(105.0).reshape(T, B, H), 200)
    assert torch.equal(spec.reshape(B, -1).low, spec.low.reshape(B, -1))
    assert spec.view(15, H) == spec.reshape((15, H)) == spec.flatten(0, 1)
    assert spec.flatten().shape == (105,)
    assert spec.flatten().unflatten(0, (T, B, H)) == spec
    assert Unbounded(()).flatten().shape == (1,)


def test_squeeze_and_unsqueeze():
    spec = Unbounded((1, 3, 1))
    assert spec.squeeze().shape == (3,)
    assert spec.squeeze(-1).shape == (1, 3)
    assert spec.squeeze(1) is spec
    assert Unbounded((3,)).unsqueeze(-1).shape == (3, 1)


def test_unbind_gives_one_spec_for_each_row():
    spec = Bounded(torch.arange(15.0).reshape(T, B), 20)
    rows = spec.unbind(1)
    assert len(rows) == B
    assert torch.equal(rows[2].low, spec.low[:, 2])


@pytest.mark.parametrize(
    "index",
    [
        0, -1, slice(1, 3), None, ..., (slice(None), 2), (..., 0), (0, None, slice(None, None, 2)),
        [4, 0], [[0, 1], [2, 3]], range(1, 4), np.array([3, 1]), torch.tensor([2]),
        (slice(None), [2, 0]), ([1, 2], [0, 1]), torch.tensor([True, False, True, True, False]),
        [], True,
    ],
    ids=str,
)  # fmt: skip
def test_an_index_acts_as_on_a_tensor(index):
    spec = Bounded(torch.arange(15.0).reshape(T, B), 20)
    plain = [int(i) for i in index] if isinstance(index, range) else index
    expected = spec.low[
        torch.tensor(plain, dtype=torch.int64) if isinstance(plain, list) else plain
    ]
    assert torch.equal(spec[index].low, expected)


def test_an_index_stops_before_the_domain():
    spec = OneHot(4, (T, B, 4))
    assert spec[..., 0].shape == (T, 4)
    assert spec[0, 0].shape == (4,)
    with pytest.raises(IndexError, match="its last dimension holds the domain"):
        spec[0, 0, 0]


def test_bits_may_be_indexed():
    assert Binary(4, (T, 4))[0, 1].shape == ()


def test_an_index_out_of_range_names_spec_and_index():
    with pytest.raises(IndexError, match=r"Categorical of shape \(5,\) cannot be indexed with 5"):
        Categorical(3, (T,))[5]


def test_a_key_is_no_index_of_a_leaf():
    with pytest.raises(TypeError, match="has no keys: got 'obs'"):
        Unbounded((3,))["obs"]


def test_a_dynamic_dimension_takes_integers_and_all():
    spec = Unbounded((-1, 3))
    assert spec[100].shape == (3,)
    assert spec[:, 1].shape == (-1,)
    assert spec[..., 1:].shape == (-1, 2)
    assert spec[[0, 1]].shape == (2, 3)
    with pytest.raises(IndexError, match="dimension 0 of"):
        spec[1:]
    with pytest.raises(IndexError, match="dimension 1 of"):
        Unbounded((3, -1))[None, ..., :2]


def test_index_select_picks_rows():
    spec = Categorical(4, (T,), mask=torch.eye(5, 4, dtype=torch.bool) | (torch.arange(4) == 0))
    rows = torch.tensor([3, 0])
    assert torch.equal(torch.index_select(spec, 0, rows).mask, spec.mask[rows])
    with pytest.raises(IndexError, match="out of range for dimension 0 of size 5"):
        spec.index_select(0, torch.tensor([5]))


DOMAIN_CALLS = {
    "squeeze": lambda s: s.squeeze(-1),
    "unsqueeze": lambda s: s.unsqueeze(-1),
    "unbind": lambda s: s.unbind(-1),
    "flatten": lambda s: s.flatten(),
    "unflatten": lambda s: s.unflatten(-1, (1, 1)),
    "expand": lambda s: s.expand(2, 2),
    "reshape": lambda s: s.reshape(2, 1, 1, 2),
    "index_select": lambda s: s.index_select(1, torch.tensor([0])),
    "make_neg_dim": lambda s: s.make_neg_dim(1),
    "stack": lambda s: torch.stack([s, s], 2),
}


@pytest.mark.parametrize("call", DOMAIN_CALLS.values(), ids=DOMAIN_CALLS)
@pytest.mark.parametrize(
    "spec", [OneHot(1, (2, 1)), MultiCategorical([4], (2, 1))], ids=["hot", "multi"]
)
def test_the_domain_dimension_stays(call, spec):
    with pytest.raises(ValueError, match="domain"):
        call(spec)


def test_dimensions_out_of_range_are_named():
    for call in (Unbounded((3,)).squeeze, Unbounded((3,)).unbind, Unbounded((3,)).unsqueeze):
        with pytest.raises(ValueError, match="dimension 4 is out of range"):
            call(4)


def test_a_dynamic_dimension_cannot_be_unbound():
    with pytest.raises(ValueError, match="its size is dynamic"):
        Unbounded((-1,)).unbind()


def test_torch_functions_act_on_specs():
    spec = Unbounded((5, 1, 3))
    assert torch.squeeze(spec, 1).shape == (5, 3)
    assert torch.unsqueeze(spec, 0).shape == (1, 5, 1, 3)
    assert torch.flatten(spec).shape == torch.reshape(spec, (15,)).shape == (15,)
    assert len(torch.unbind(spec)) == 5
    assert torch.unflatten(spec, 0, (5, 1)).shape == (5, 1, 1, 3)
    with pytest.raises(TypeError):
        torch.cat([spec, spec])
