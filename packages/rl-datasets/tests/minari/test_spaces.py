"""Spaces as Minari writes them."""

from rl_datasets.minari.spaces import leaf_spaces


def test_leaves_of_a_space_are_named_by_their_paths_in_a_file():
    box = {"type": "Box", "dtype": "float32", "shape": [3]}
    pair = {"type": "Tuple", "subspaces": [box, {"type": "Discrete", "n": 2, "start": 0}]}
    both = {"type": "Dict", "subspaces": {"a": box, "b": pair}}
    paths = [path for path, _ in leaf_spaces(both)]
    assert paths == [("a",), ("b", "_index_0"), ("b", "_index_1")]
