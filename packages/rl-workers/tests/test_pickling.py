"""Functions that travel, whatever they are made of."""

import pickle
from fractions import Fraction
from functools import partial

import pytest

from rl_workers.pickling import Portable


def test_portable_closures_arrive_with_their_variables():
    step = 5
    assert pickle.loads(pickle.dumps(Portable(lambda x: x + step)))(3) == 8


def test_a_class_stays_the_same_class():
    assert pickle.loads(pickle.dumps(Portable(Fraction))).function is Fraction


def test_a_portable_function_in_another_one_travels_too():
    inner = Portable(lambda x: 2 * x)
    assert pickle.loads(pickle.dumps(Portable(partial(map, inner))))([3]).__next__() == 6


def test_portable_refuses_objects_that_cannot_be_called():
    with pytest.raises(TypeError, match="a function that makes an object, got int"):
        Portable(3)
    with pytest.raises(TypeError, match="a function that makes an environment, got int"):
        Portable(3, makes="an environment")
