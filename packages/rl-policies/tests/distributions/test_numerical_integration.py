"""What every distribution says of itself, alongside sums and integrals of exp(log_prob)."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from rl_policies import (
    Delta,
    IndependentNormal,
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    OneHotOrdinal,
    Ordinal,
    TanhNormal,
    TruncatedNormal,
)

DRAWN = 20_000
LOC, SCALE = torch.tensor([0.7, -0.4]).double(), torch.tensor([0.3, 1.1]).double()
LOW, HIGH = torch.tensor([-2.0, 0.5]).double(), torch.tensor([1.5, 4.0]).double()
VECTORS = {
    "normal": (lambda: IndependentNormal(LOC, SCALE), LOC - 12 * SCALE, LOC + 12 * SCALE),
    "normal, tanh_loc": (
        lambda: IndependentNormal(3 * LOC, SCALE, upscale=2.0, tanh_loc=True),
        -15 * torch.ones(2).double(),
        15 * torch.ones(2).double(),
    ),
    "tanh": (lambda: TanhNormal(LOC, SCALE), -torch.ones(2).double(), torch.ones(2).double()),
    "tanh, bounds": (lambda: TanhNormal(LOC, SCALE, low=LOW, high=HIGH), LOW, HIGH),
    "truncated": (
        lambda: TruncatedNormal(LOC, SCALE),
        -torch.ones(2).double(),
        torch.ones(2).double(),
    ),
    "truncated, bounds": (lambda: TruncatedNormal(LOC, SCALE, low=LOW, high=HIGH), LOW, HIGH),
}


def trapezoid(dist, low, high, count=801):
    """Points `[count, count, 2]` between the bounds, and the mass of the cell of each."""
    # densities that end in a bound are steep there: cells shrink towards both
    way = (1 - torch.linspace(0, torch.pi, count, dtype=torch.float64).cos()) / 2
    axes = [low[i] + (high[i] - low[i]) * way for i in range(2)]
    widths = [torch.cat([x[1:] - x[:-1], torch.zeros(1).double()]) for x in axes]
    halves = [(w + w.roll(1)) / 2 for w in widths]
    x = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    return x, dist.log_prob(x).exp() * halves[0][:, None] * halves[1]


@pytest.mark.parametrize("name", VECTORS)
def test_densities_of_vectors_agree_with_numerical_integrals(name):
    make, low, high = VECTORS[name]
    dist = make()
    x, mass = trapezoid(dist, low, high)
    close = {"rtol": 1e-5, "atol": 1e-5}
    assert_close(mass.sum(), torch.tensor(1.0).double(), **close)
    mean = (mass[..., None] * x).sum((0, 1))
    variance = (mass[..., None] * (x - mean) ** 2).sum((0, 1))
    for kind, found in (("mean", mean), ("variance", variance)):
        said = known(dist, kind)
        if said is not None:
            assert_close(said, found, **close)
    entropy = known(dist, "entropy")
    if entropy is not None:
        surprise = torch.where(mass > 0, -dist.log_prob(x), 0.0)
        assert_close(entropy(), (mass * surprise).sum(), **close)
    torch.manual_seed(0)
    drawn = dist.sample((DRAWN,))
    # five standard errors
    assert ((drawn.mean(0) - mean).abs() < 5 * (variance / DRAWN).sqrt()).all()
    for edge in (-0.6, 0.55, 0.9):
        share = mass[(x < edge).all(-1)].sum()
        found = (drawn < edge).all(-1).double().mean()
        # five standard errors, and the cells that the edge cuts
        assert (found - share).abs() < 5 * (share * (1 - share) / DRAWN).sqrt() + 5e-3


def known(dist, name):
    """A moment or a method of a distribution, where it has one."""
    try:
        found = getattr(dist, name)
        if callable(found):
            found()
    except NotImplementedError:
        return None
    return found


def test_tanh_normal_alone_has_no_closed_moments():
    lacking = {
        name: [kind for kind in ("mean", "entropy") if known(make(), kind) is None]
        for name, (make, *_) in VECTORS.items()
    }
    assert {name for name, kinds in lacking.items() if kinds} == {"tanh", "tanh, bounds"}


LOGITS = torch.tensor([[0.3, -1.0, 2.0, 0.0], [1.0, 1.0, -torch.inf, 0.5]]).double()
MASK = torch.tensor([[True, False, True, True], [False, True, True, True]])
CHOICES = {
    "one-hot": lambda: OneHotCategorical(LOGITS),
    "one-hot, probs": lambda: OneHotCategorical(probs=LOGITS.exp()),
    "one-hot, mask": lambda: MaskedOneHotCategorical(LOGITS, mask=MASK),
    "mask": lambda: MaskedCategorical(LOGITS, mask=MASK),
    "mask, probs": lambda: MaskedCategorical(probs=LOGITS.exp(), mask=MASK),
    "ordinal": lambda: Ordinal(LOGITS.clamp(min=-3)),
    "one-hot ordinal": lambda: OneHotOrdinal(LOGITS.clamp(min=-3)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_probabilities_of_choices_agree_with_sums(name):
    dist = CHOICES[name]()
    vectors = bool(dist.event_shape)
    every = torch.eye(4) if vectors else torch.arange(4)
    every = every[:, None].expand(4, 2, *dist.event_shape)
    log_prob = dist.log_prob(every)
    mass = log_prob.exp()
    assert_close(mass.sum(0), torch.ones(2).double())
    assert_close(dist.probs, mass.T)
    surprise = torch.where(mass > 0, -log_prob, 0.0)
    assert_close(dist.entropy(), (mass * surprise).sum(0))
    assert torch.equal(dist.log_prob(dist.mode), log_prob.max(0).values)
    torch.manual_seed(0)
    drawn = dist.sample((DRAWN,))
    index = drawn.argmax(-1) if vectors else drawn
    for row in range(2):
        found = index[:, row].bincount(minlength=4) / DRAWN
        spread = (mass[:, row] * (1 - mass[:, row]) / DRAWN).sqrt()
        assert ((found - mass[:, row]).abs() <= 5 * spread).all()
    if "mask" in name:
        assert (mass.T[~MASK] == 0).all()


def test_mass_of_a_point_is_one():
    dist = Delta(LOC)
    every = torch.stack([LOC, LOC + 1e-4, LOC * torch.tensor([1.0, 0.0])])
    assert dist.log_prob(every).exp().tolist() == [1.0, 0.0, 0.0]
    assert dist.entropy() == 0
    assert torch.equal(dist.sample((5,)).mean(0), dist.mean)
