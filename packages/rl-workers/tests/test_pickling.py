"""Functions that travel, whatever they are made of."""

import pickle
from functools import partial

import pytest

from rl_envs.portable import Portable
from rl_envs.testing import CountingEnv


def test_a_closure_arrives_with_what_it_holds():
    step = 5
    assert pickle.loads(pickle.dumps(Portable(lambda x: x + step)))(3) == 8


def test_a_class_stays_the_same_class():
    assert pickle.loads(pickle.dumps(Portable(CountingEnv))).function is CountingEnv


def test_a_portable_function_in_another_one_travels_too():
    inner = Portable(lambda x: 2 * x)
    assert pickle.loads(pickle.dumps(Portable(partial(map, inner))))([3]).__next__() == 6


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="got int"):
        Portable(3)
