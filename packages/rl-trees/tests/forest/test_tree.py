from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_trees import MCTSForest, Tree

STEP = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5), st.booleans())
ROLLOUTS = st.lists(st.lists(STEP, min_size=1, max_size=8), max_size=5)


def chain(*observations, action=0, done=False):
    """Steps from one observation to the next."""
    last = len(observations) - 2
    pairs = itertools.pairwise(observations)
    return [(a, action, b, done and i == last) for i, (a, b) in enumerate(pairs)]


def paths_by_recursion(edges, place, above=()):
    """Paths from a place (observation, terminal), in a graph without merged steps."""
    children = [] if place[1] else edges.get(place[0], [])
    if not children or place in above:
        return [()]
    return [
        (i, *rest)
        for i, child in enumerate(children)
        for rest in paths_by_recursion(edges, child, (*above, place))
    ]


@given(ROLLOUTS)
def test_paths_are_those_of_a_recursive_walk(root_of, forest_of, rollouts):
    forest, edges, done = forest_of(*rollouts), {}, {}
    for steps in rollouts:
        for step in steps:
            done[step[:3]] = step[3]
    for (observation, _, after), ended in done.items():
        edges.setdefault(observation, []).append((after, ended))
    for observation in edges:
        tree = forest.get_tree(root_of(observation), compact=False)
        expected = paths_by_recursion(edges, (observation, False))
        if len(expected) > 300:
            continue
        assert sorted(tree.valid_paths()) == sorted(expected)
        assert [*map(len, tree.valid_paths())] == sorted(map(len, expected))
        assert tree.max_length() == max(map(len, expected))
        for path in expected[:5]:
            steps = tree.rollout_from_path(path)
            assert len(path) == (0 if steps is None else len(steps))


@given(ROLLOUTS)
def test_merged_steps_are_the_same_rollouts(root_of, forest_of, rollouts):
    """What a compact tree shows from its root is a path of the tree of single steps."""
    forest = forest_of(*rollouts)
    for observation in {step[0] for steps in rollouts for step in steps}:
        compact = forest.get_tree(root_of(observation))
        for _, path in zip(range(20), compact.valid_paths(), strict=False):
            steps = compact.rollout_from_path(path)
            seen = steps["observation"].tolist()
            assert seen[0] == observation
            assert steps["next", "observation"].tolist()[:-1] == seen[1:]
            assert not steps["next", "done"][:-1].any()
        assert set(compact.vertices(key_type="id")) == set(range(compact.num_vertices()))
        for vertex in compact.vertices().values():
            assert vertex.num_children != 1 or vertex.node_id in dict(compact.edges())


def test_steps_are_merged_until_actions_branch(root_of, forest_of):
    forest = forest_of(chain(0, 1, 2, 3, 4), chain(2, 7, 8, action=1, done=True))
    tree = forest.get_tree(root_of(0))
    assert tree.rollout["next", "observation"].tolist() == [1, 2]
    assert [*tree.valid_paths()] == [(0,), (1,)]
    assert tree.node_observation == 2
    left, right = tree.subtree
    assert left.rollout["next", "observation"].tolist() == [3, 4]
    assert (right.branching_action, right.prev_action, right.is_terminal) == (1, 1, True)
    assert tree.selected_actions.tolist() == [0, 1]
    assert tree.rollout_from_path((1,))["next", "observation"].tolist() == [1, 2, 7, 8]
    assert tree.edges() == [(0, 1), (0, 2)]
    assert right.parent is tree
    assert left.subtree is None
    assert left.selected_actions is None
    assert left.index is None
    assert tree.index.tolist() == [2, 4]
    single = forest.get_tree(root_of(0), compact=False)
    assert [*single.valid_paths()] == [(0, 0, 0, 0), (0, 0, 1, 0)]
    assert (single.rollout, single.prev_action, single.branching_action) == (None, None, None)
    assert single.count == 1


def test_observations_that_are_reached_twice_are_one_vertex(root_of, forest_of):
    forest = forest_of(chain(0, 1, 3), chain(0, 2, 3, action=1), chain(3, 4), chain(3, 5, action=1))
    tree = forest.get_tree(root_of(0))
    first, second = tree.subtree
    assert first.node_id == second.node_id
    assert first.rollout["observation"].tolist() == [0, 1]
    assert second.rollout["observation"].tolist() == [0, 2]
    assert (tree.num_vertices(), tree.num_vertices(count_repeat=True)) == (4, 7)
    assert set(tree.vertices(key_type="path")) == {
        (), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)
    }  # fmt: skip
    assert tree.edges() == [(0, 1), (0, 1), (1, 2), (1, 3)]


def test_circles_end(root_of, forest_of):
    tree = forest_of(chain(0, 1, 2, 3, 1)).get_tree(root_of(0))
    assert tree.rollout["next", "observation"].tolist() == [1, 2, 3, 1]
    assert [*tree.valid_paths()] == [(0,)]
    assert tree.subtree[0].rollout["next", "observation"].tolist() == [2, 3, 1]
    assert tree.subtree[0].node_id == tree.node_id
    long = forest_of(chain(*range(200), 150))
    assert len(long.get_tree(root_of(0)).rollout) == 200
    alone = forest_of(chain(4, 4)).get_tree(root_of(4))
    assert alone.to_string(lambda t: int(t.count)) == "() 1\n(0,) 1"


def test_an_episode_that_ended_does_not_go_on(root_of, rollout_of, forest_of):
    forest = forest_of(chain(0, 1, done=True), chain(1, 2))
    tree = forest.get_tree(root_of(0))
    assert (tree.is_terminal, tree.num_children, len(tree.rollout)) == (True, 0, 1)
    forest.extend(rollout_of(chain(0, 1, action=1)))
    tree = forest.get_tree(root_of(0), compact=False)
    ended, going = tree.subtree
    assert (ended.is_terminal, going.is_terminal) == (True, False)
    assert (ended.num_children, going.num_children) == (0, 1)
    assert ended.hash != going.hash
    assert tree.get_vertex_by_hash(going.hash).node_id == going.node_id


def test_depth_is_counted_in_levels_below_the_root(root_of, forest_of):
    forest = forest_of(chain(0, 1, 2, 3))
    lengths = [
        forest.get_tree(root_of(0), max_depth=depth, compact=False).max_length()
        for depth in (0, 1, 2, 3, 9)
    ]
    assert lengths == [0, 1, 2, 3, 3]


def test_deep_trees_need_no_recursion(root_of, forest_of):
    forest = forest_of(chain(*range(5_000)))
    tree = forest.get_tree(root_of(0), compact=False)
    assert tree.num_vertices() == 5_000
    assert len(forest.get_tree(root_of(0)).rollout) == 4_999


def test_vertices_are_found_by_id_and_hash(root_of, forest_of):
    tree = forest_of(chain(0, 1), chain(0, 2, action=1)).get_tree(root_of(0))
    second = tree.get_vertex_by_id(2)
    assert second.node_observation == 2
    assert tree.get_vertex_by_hash(second.hash).node_id == 2
    assert second in tree
    assert tree not in second
    assert "second" not in tree
    other = forest_of(chain(5, 2), chain(5, 9, action=1)).get_tree(root_of(5))
    assert other.subtree[0] in tree
    assert other.subtree[1] not in tree
    with pytest.raises(ValueError, match="this tree has no vertex with node_id 7"):
        tree.get_vertex_by_id(7)
    with pytest.raises(ValueError, match="this tree has no vertex with hash 7"):
        tree.get_vertex_by_hash(7)
    with pytest.raises(ValueError, match="key_type must be 'hash', 'id' or 'path', got 'x'"):
        tree.vertices(key_type="x")
    with pytest.raises(IndexError, match="vertex 0 has 2 children, there is no number 2"):
        tree.rollout_from_path((2,))


def test_expanded_is_a_vertex_with_all_actions(root_of, rollout_of, forest_of):
    env = SimpleNamespace(action_spec=SimpleNamespace(cardinality=lambda: 2))
    forest = forest_of(chain(0, 1), chain(0, 2))  # one action with two results
    assert not forest.get_tree(root_of(0)).fully_expanded(env)
    forest.extend(rollout_of(chain(0, 2, action=1)))
    assert forest.get_tree(root_of(0)).fully_expanded(env)


def test_text_has_a_line_for_each_path(root_of, forest_of):
    forest = forest_of(
        chain(0, 123, 456), chain(0, 359, 3094, action=2), chain(123, 392, 847, action=9),
        chain(0, 75, action=1), chain(3094, 68, action=10), chain(3094, 9045, action=11),
    )  # fmt: skip
    text = forest.to_string(root_of(0), lambda tree: int(tree.node_observation))
    assert text == (
        "(0,) 123\n (0, 0) 456\n (0, 1) 847\n(1,) 3094\n (1, 0) 68\n (1, 1) 9045\n(2,) 75"
    )
    assert "(2,) {'observation': tensor(75)}" in forest.to_string(root_of(0))
    assert repr(forest.get_tree(root_of(0))) == "Tree(node_id=0, num_children=3, count=3, steps=0)"


def test_picture_has_a_place_for_each_vertex(root_of, forest_of):
    forest = forest_of(chain(0, 1, 3), chain(0, 2, 3, action=1), chain(0, 9, action=2))
    tree = forest.get_tree(root_of(0), compact=False)
    picture = ET.fromstring(tree.to_svg(lambda t: f"<{int(t.node_observation)}>"))
    name = "{http://www.w3.org/2000/svg}"
    labels = [element.text for element in picture.iter(f"{name}text")]
    assert labels == ["<0>", "<1>", "<2>", "<9>", "<3>"]
    dashed = [element.get("stroke-dasharray") for element in picture.iter(f"{name}path")]
    assert dashed == [None, None, None, None, "4"]
    places = {(c.get("cx"), c.get("cy")) for c in picture.iter(f"{name}circle")}
    assert len(places) == 5


def test_plot_draws_with_matplotlib_alone(root_of, forest_of):
    pytest.importorskip("matplotlib")
    tree = forest_of(chain(0, 1), chain(0, 2, action=1)).get_tree(root_of(0))
    axes = tree.plot(info=["count", "is_terminal"])
    assert [text.get_text() for text in axes.texts] == ["count=2\nis_terminal=False"] + [
        "count=1\nis_terminal=False"
    ] * 2
    assert [text.get_text() for text in tree.plot().texts] == ["2", "1", "1"]
    with pytest.raises(NotImplementedError, match="got 'plotly' and 'box'"):
        tree.plot("plotly", "box")


@pytest.mark.parametrize("call", ["to_string", "to_svg", "plot"])
@pytest.mark.parametrize("given", [3, "count", ["count"]])
def test_labels_that_are_no_function_are_named(root_of, forest_of, call, given):
    tree = forest_of(chain(0, 1)).get_tree(root_of(0))
    name = "node_format_fn" if call == "to_string" else "make_labels"
    with pytest.raises(TypeError, match=rf"{name}: expected a function or a module, got "):
        getattr(tree, call)(**{name: given})


@pytest.mark.parametrize(
    ("info", "kind", "text"),
    [
        ("count", TypeError, r"info: expected a list of names of properties, got 'count'"),
        (3, TypeError, r"info: expected a list of names of properties, got 3"),
        ([3], ValueError, r"info: expected .*'count'.*'wins', got 3"),
        (["counts"], ValueError, r"info: expected .*'count'.*'wins', got 'counts'"),
        (["max_length"], ValueError, r"info: expected .*'count'.*'wins', got 'max_length'"),
        (["_path"], ValueError, r"info: expected .*'count'.*'wins', got '_path'"),
    ],
)
@pytest.mark.parametrize("labels", [None, repr])
def test_names_of_no_property_are_refused(root_of, forest_of, info, kind, text, labels):
    tree = forest_of(chain(0, 1)).get_tree(root_of(0))
    with pytest.raises(kind, match=text):
        tree.plot(info=info, make_labels=labels)


def test_trees_of_several_entries_give_tensordicts(rollout_of):
    forest = MCTSForest(observation_keys=["observation", "x"], action_keys=["action", "u"])
    steps = rollout_of([(0, 0, 1, False), (1, 1, 2, False)])
    steps["x"], steps["next", "x"], steps["u"] = torch.zeros(2), torch.zeros(2), torch.ones(2)
    forest.extend(steps)
    tree: Tree = forest.get_tree(steps)
    assert set(tree.node_observation.keys()) == {"observation", "x"}
    assert set(tree.prev_action.keys()) == {"action", "u"}
    assert tree.node_observations["observation"] == 2
    assert tree.branching_action["action"] == 0


def test_numbers_of_children_and_vertices_that_are_none_are_named(root_of, forest_of):
    tree = forest_of(chain(1, 2, 3)).get_tree(root_of(1))
    calls = {"number": tree.child, "id": tree.get_vertex_by_id, "hash": tree.get_vertex_by_hash}
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name}: expected a whole number, got 'a'"):
            call("a")
    with pytest.raises(TypeError, match="path: expected a sequence of numbers of children, got 3"):
        tree.rollout_from_path(3)
    with pytest.raises(TypeError, match="env: expected an environment with an action_spec, got 3"):
        tree.fully_expanded(3)
    with pytest.raises(TypeError, match="vertices: expected the vertices of a forest, got 3"):
        Tree(3)
