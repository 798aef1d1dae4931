import pytest

from rl_policies.keys import listed


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (None, ["b"]),
        ("a", ["a"]),
        (("a", "c"), [("a", "c")]),
        (["a", ("c", "d")], ["a", ("c", "d")]),
    ],
)
def test_listed_tells_a_key_from_a_list_of_keys(keys, expected):
    assert listed(keys, "b") == expected
