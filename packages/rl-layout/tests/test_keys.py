from __future__ import annotations

import pytest

from rl_layout import keys


def test_next_key_and_root_key_are_inverse():
    for key in ("observation", ("agents", "observation")):
        assert keys.root_key(keys.next_key(key)) == key


@pytest.mark.parametrize("key", ["observation", "next", ("agents", "next")])
def test_only_keys_under_next_have_a_root_key(key):
    with pytest.raises(ValueError, match="under 'next'"):
        keys.root_key(key)
