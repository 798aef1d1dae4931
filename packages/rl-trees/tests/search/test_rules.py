from __future__ import annotations

import pytest

from rl_trees import EXP3, PUCT, UCB1, GumbelHalving


def test_halving_spends_equal_visits_on_half_as_many_actions_each_time():
    plan = GumbelHalving(16).plan(4)
    assert plan[4].tolist() == [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]
    assert plan[1].tolist() == [*range(16)]
    assert plan[3].tolist() == [0] * 3 + [1] * 3 + [2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="num_simulations: expected at least 1, got 0"):
        GumbelHalving(0)
    with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\]"):
        EXP3(gamma=0.0)
    with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\]"):
        EXP3(low=1.0, high=1.0)


def test_rules_are_four_numbers_and_the_virtual_loss():
    rule = PUCT(c=2.0, normalize=True).rule(0.5)
    assert rule.parameters.tolist() == [2.0, 19652.0, 0.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: EXP3(low="0"), "low"),
        (lambda: GumbelHalving(8, value_scale=None), "value_scale"),
        (lambda: PUCT(c_base="many"), "c_base"),
        (lambda: PUCT(normalize=1), "normalize"),
        (lambda: UCB1([]), "c"),
        (lambda: GumbelHalving(8).plan(2.0), "actions"),
        (lambda: PUCT().rule("one"), "virtual_loss"),
    ],
)
def test_what_is_no_number_is_named(make, name):
    with pytest.raises(TypeError, match=f"^{name}: expected (a|True)"):
        make()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: PUCT(c_base=0), "c_base: expected a number above 0, got 0"),
        (lambda: PUCT(c=float("inf")), "c: expected a finite number, got inf"),
        (lambda: UCB1(-float("inf")), "c: expected a finite number, got -inf"),
        (lambda: GumbelHalving(8, value_scale=-0.1), "value_scale: .* at least 0, got -0.1"),
        (lambda: GumbelHalving(8, visit_offset=-1), "visit_offset: .* at least 0, got -1"),
    ],
)
def test_numbers_that_no_search_can_use_are_refused(make, expected):
    with pytest.raises(ValueError, match=f"^{expected}"):
        make()
