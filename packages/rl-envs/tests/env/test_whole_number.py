import numpy as np
import pytest

from rl_envs.env.whole_number import check_whole


def test_whole_numbers_of_every_kind_pass():
    for number in (3, np.int64(3), True):
        check_whole(number, 1, "count")


def test_check_whole_tells_wrong_types_from_small_numbers():
    for thing in (3.0, "3", None):
        with pytest.raises(TypeError, match="count must be a whole number: got"):
            check_whole(thing, 1, "count")
    with pytest.raises(ValueError, match="count must be at least 4: got 3"):
        check_whole(3, 4, "count")
