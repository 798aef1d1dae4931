"""Searches that step a model, against the same simulations call by call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_trees import EXP3, PUCT, UCB1, GumbelHalving, MCTSTrees, SearchStep

TREES, SIMULATIONS, ACTIONS = 7, 20, 3
RULES = [PUCT(normalize=True), UCB1(), EXP3(gamma=0.3), GumbelHalving(SIMULATIONS)]
RANDOM = torch.randn(97, ACTIONS + 2, generator=torch.Generator().manual_seed(0))


def step(state, action):
    """A game on the numbers 0 to 96, by tables."""
    after = (state * 5 + action[:, None] * 31 + 7) % 97
    table = RANDOM[after[:, 0].long()]
    legal = table[:, :ACTIONS] > -1.5
    legal[:, 0] = True
    reward, value = table[:, ACTIONS], table[:, ACTIONS + 1]
    return SearchStep(after, reward, table[:, :ACTIONS], value, 0.9, after[:, 0] % 11 == 0, legal)


def step_of_arrays(state, action):
    """The same game in numpy."""
    assert isinstance(state, np.ndarray)
    made = step(torch.from_numpy(state), torch.from_numpy(action))
    return tuple(x.numpy() if isinstance(x, torch.Tensor) else x for x in made)


def begun(rule):
    trees = MCTSTrees(TREES, SIMULATIONS + 1, ACTIONS, rule)
    generator = torch.Generator().manual_seed(1)
    trees.reset(torch.zeros(TREES, ACTIONS), generator=generator)
    return trees


def stepped(rule, roots, waiting=0):
    """A search of select, expand and backup, after selections that are not backed up."""
    trees, rows = begun(rule), torch.arange(TREES)
    for _ in range(waiting):
        trees.select()
    states = roots.new_zeros(TREES, SIMULATIONS + 1, 2)
    states[:, 0] = roots
    for _ in range(SIMULATIONS):
        leaves = trees.select()
        after, *results = step(states[rows, leaves.node], leaves.action)
        reward, logits, value, discount, done, legal = results
        known = {"discount": discount, "done": done, "legal": legal}
        states[rows, trees.expand(leaves, reward, logits, value, **known)] = after
        trees.backup(leaves)
    return trees


def roots_of(dtype):
    return torch.arange(2 * TREES).reshape(TREES, 2).to(dtype)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, None], ids=str)
def test_a_search_with_a_model_grows_the_trees_of_single_calls(loops, rule, dtype):
    """States as tensors that numpy has and has not, and, for None, as arrays."""
    roots = roots_of(dtype or torch.int64)
    one, other = stepped(rule, roots), begun(rule)
    if dtype is None:
        other.search(step_of_arrays, roots.numpy(), SIMULATIONS)
    else:
        other.search(step, roots, SIMULATIONS)
    assert torch.equal(one.sizes, other.sizes)
    assert torch.equal(one.best_actions(), other.best_actions())
    for row, size in enumerate(one.sizes.tolist()):
        for name in ("child", "visits", "pending", "totals"):
            found = (getattr(trees.columns, name)[row, :size] for trees in (one, other))
            np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_search_counts_selections_that_are_not_backed_up(loops, rule):
    roots = roots_of(torch.int64)
    one, other = stepped(rule, roots, waiting=2), begun(rule)
    for _ in range(2):
        other.select()
    other.search(step, roots, SIMULATIONS)
    for name in ("visits", "pending"):
        found = (getattr(trees.columns, name)[:, 0] for trees in (one, other))
        np.testing.assert_array_equal(*found)
    assert not torch.equal(one.root_visits, stepped(rule, roots).root_visits)


def test_a_search_is_in_the_compiled_loops_where_numba_is(monkeypatch):
    numba_search = pytest.importorskip("rl_trees.search.numba_search")
    rounds, advance = [], numba_search.advance
    monkeypatch.setattr(numba_search, "advance", lambda *a: (rounds.append(1), advance(*a)))
    begun(PUCT()).search(step, roots_of(torch.int64), SIMULATIONS)
    assert len(rounds) == SIMULATIONS


def test_states_that_a_model_keeps_are_not_overwritten(loops):
    kept = []

    def model(state, action):
        kept.append((state, state.clone(), action, action.clone()))
        return step(state, action)

    begun(PUCT()).search(model, roots_of(torch.int64), SIMULATIONS)
    assert all(torch.equal(a, b) and torch.equal(c, d) for a, b, c, d in kept)


def test_states_of_the_roots_are_not_changed(loops):
    roots = roots_of(torch.int64)

    def model(state, action):
        made = step(state, action)
        state.zero_()
        return made

    begun(PUCT()).search(model, roots, SIMULATIONS)
    assert torch.equal(roots, roots_of(torch.int64))


def test_states_of_any_layout_and_class_are_taken(loops):
    def turned(state, action):
        made = step(state, action)
        return made._replace(state=made.state.T.contiguous().T)

    wanted = stepped(PUCT(), roots_of(torch.int64)).root_visits
    trees, other = begun(PUCT()), begun(PUCT())
    trees.search(turned, roots_of(torch.int64).T.contiguous().T, SIMULATIONS)
    other.search(step, torch.nn.Parameter(roots_of(torch.float32)), SIMULATIONS)
    assert torch.equal(trees.root_visits, wanted)
    assert torch.equal(other.root_visits, wanted)


def test_a_search_takes_no_gradients():
    weight = torch.ones(1, requires_grad=True)

    def model(state, action):
        assert not (weight * 2).requires_grad
        return step(state, action)

    begun(PUCT()).search(model, roots_of(torch.int64), 2)


def test_a_model_that_fails_leaves_the_trees_of_whole_rounds(loops):
    trees, roots, calls = begun(PUCT()), roots_of(torch.int64), []

    def model(state, action):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return step(state, action)

    with pytest.raises(KeyboardInterrupt):
        trees.search(model, roots, SIMULATIONS)
    assert trees.root_visits.sum(1).tolist() == [7] * TREES
    assert not trees.columns.pending.any()


def test_more_simulations_than_nodes_are_refused_before_anything_is_written(loops):
    trees = begun(PUCT())
    with pytest.raises(RuntimeError, match=r"20 of 21 nodes are left, and 21 .* num_nodes=22 or"):
        trees.search(step, roots_of(torch.int64), SIMULATIONS + 1)
    assert not trees.root_visits.any()


@pytest.mark.parametrize("given", [3, SearchStep(1, 2, 3, 4)[:3], (*range(8),)], ids=str)
def test_what_is_no_step_is_named(given):
    with pytest.raises(TypeError, match="model: expected a SearchStep, or a tuple of state, rew"):
        begun(PUCT()).search(lambda *_: given, roots_of(torch.int64), 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": torch.zeros(7, 2)}, r"model: expected states torch.int64 \[7, 2\] as at the"),
        ({"state": torch.zeros(7, 1, dtype=torch.int64)}, "model: expected states torch.int64"),
        (
            {"state": np.zeros((7, 2), np.int64)},
            r"model: expected states .* as at the roots, got a nd",
        ),
        ({"state": None}, "model: expected states torch.int64"),
        ({"reward": torch.zeros(3)}, r"reward must be \[7\], got \[3\]"),
        ({"discount": torch.nan}, "discount is not finite: nan"),
        ({"value": torch.full((7,), torch.inf)}, r"value at \(0,\) is not finite: inf"),
    ],
    ids=str,
)
def test_results_of_a_model_that_do_not_fit_are_refused(change, message):
    trees = begun(PUCT())

    def model(state, action):
        return step(state, action)._replace(done=None, **change)

    with pytest.raises(ValueError, match=message):
        trees.search(model, roots_of(torch.int64), 2)
    assert not trees.columns.pending.any()
    assert trees.sizes.tolist() == [1] * TREES


def test_arguments_that_fit_no_search_are_named():
    roots = roots_of(torch.int64)
    with pytest.raises(RuntimeError, match="there are no roots: call reset first"):
        MCTSTrees(TREES, 9, ACTIONS).search(step, roots, 2)
    for model in (3, None):
        with pytest.raises(TypeError, match="model: expected a function or a module"):
            begun(PUCT()).search(model, roots, 2)
    with pytest.raises(ValueError, match="simulations: expected at least 1, got 0"):
        begun(PUCT()).search(step, roots, 0)
    for states in (roots[:3], roots[0, 0], [1, 2], None, np.full(TREES, None)):
        with pytest.raises(TypeError, match="states: expected a tensor or an array of a state"):
            begun(PUCT()).search(step, states, 2)
