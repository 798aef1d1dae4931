"""Weights of a penalty, against the paper's rule."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_text import AdaptiveKLController, ConstantKLController


@given(
    st.lists(st.lists(st.floats(0, 50), min_size=1, max_size=4), min_size=1, max_size=4),
    st.floats(0.1, 20),
)
def test_adaptive_weight_follows_the_rule_of_the_paper(rounds, target):
    control = AdaptiveKLController(init_kl_coef=0.3, target=target, horizon=7)
    wanted = 0.3
    for values in rounds:
        error = min(max(sum(values) / len(values) / target - 1, -0.2), 0.2)
        wanted *= 1 + error * len(values) / 7
        assert control.update(values) == pytest.approx(wanted)
    assert control.kl_coef == pytest.approx(wanted)


def test_weight_rises_where_the_divergence_is_too_large():
    control = AdaptiveKLController(init_kl_coef=0.1, target=1.0, horizon=5)
    assert control.update(torch.tensor([3.0])) > 0.1
    assert control.update([0.0] * 2) < control.update([1.0]) + 1e-9


def test_weights_are_written_into_a_model():
    model = SimpleNamespace(kl_coef=0.0)
    control = AdaptiveKLController(init_kl_coef=0.1, target=1.0, horizon=5, model=model)
    assert model.kl_coef == 0.1
    control.update([5.0])
    assert model.kl_coef == control.kl_coef == pytest.approx(0.104)
    assert ConstantKLController(kl_coef=0.5, model=model).update([9.0]) == 0.5
    assert model.kl_coef == 0.5
    assert ConstantKLController(model=model).kl_coef == 0.5


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: ConstantKLController(kl_coef=-1), ValueError, "kl_coef: expected 0 or more"),
        (lambda: ConstantKLController(), ValueError, "expected a number, or a model that has one"),
        (
            lambda: ConstantKLController(kl_coef=1, model=object()),
            AttributeError,
            "a object has no kl_coef",
        ),
        (
            lambda: AdaptiveKLController(init_kl_coef=1, target=0, horizon=1),
            ValueError,
            "target: expected a divergence above 0",
        ),
        (
            lambda: AdaptiveKLController(init_kl_coef=1, target=1, horizon=0),
            ValueError,
            "horizon: expected at least 1",
        ),
        (
            lambda: AdaptiveKLController(init_kl_coef=1, target=1, horizon=1).update(None),
            ValueError,
            "kl_values: expected finite divergences, got None",
        ),
        (
            lambda: AdaptiveKLController(init_kl_coef=1, target=1, horizon=1).update(
                [float("nan")]
            ),
            ValueError,
            "kl_values: expected finite divergences",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(made, error, message):
    with pytest.raises(error, match=message):
        made()


@pytest.mark.parametrize("count", [10, 12])
def test_divergences_that_could_turn_the_weight_around_are_refused(count):
    control = AdaptiveKLController(init_kl_coef=0.1, target=1.0, horizon=2)
    with pytest.raises(ValueError, match=f"{count} divergences at once, and horizon is 2"):
        control.update([1.0] * count)
    assert control.kl_coef == 0.1
    assert control.update([0.0] * 9) > 0


@pytest.mark.parametrize("values", ["a", ["a"], {"kl": 1.0}, [None]])
def test_divergences_that_are_no_numbers_are_named(values):
    control = AdaptiveKLController(init_kl_coef=0.1, target=1.0, horizon=2)
    with pytest.raises(TypeError, match="kl_values: expected numbers, got"):
        control.update(values)


def test_weights_and_targets_are_finite():
    with pytest.raises(ValueError, match="kl_coef: expected 0 or more and finite, got inf"):
        ConstantKLController(kl_coef=float("inf"))
    with pytest.raises(ValueError, match="target: expected a divergence above 0 and finite"):
        AdaptiveKLController(init_kl_coef=1, target=float("inf"), horizon=1)
