"""Arguments of another kind are refused with a message of this package."""

import re

import pytest
import torch

from rl_slabs import Lanes, RowSchema, Slab

SCHEMA = RowSchema({"reward": (torch.float32, (1,))})


def lanes():
    made = Lanes(Slab.private(SCHEMA, 8, lanes=2))
    lane = made.claim()
    lane.reserve(2)
    lane.publish(2)
    return made


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lanes().claim().reserve("a"), "a number of rows must be an integer: got 'a'"),
        (lambda: lanes().claim().publish(1.5), "a number of rows must be an integer: got 1.5"),
        (lambda: lanes().window().numbers(3), "places must be a tensor of integers: got 3"),
        (lambda: lanes().window().draw("a"), "cannot draw 'a' rows"),
        (lambda: lanes().restore(3, 4), "expected a list of counters, one a lane: got 3 and 4"),
        (lambda: RowSchema(3), "expected a dtype and a shape for each key"),
        (lambda: SCHEMA.select(1.5), "expected a list of keys: got float"),
        (lambda: Slab.open(3.5), "expected a path, a string or a pathlib.Path: got float"),
    ],
    ids=map(str, range(8)),
)
def test_it_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
