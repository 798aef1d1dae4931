"""Arguments of another kind are refused with a message of this package."""

import math
import re

import numpy as np
import pytest
import torch

from rl_slabs import Arrays, Lanes, RowSchema, Slab

SCHEMA = RowSchema({"reward": (torch.float32, (1,))})


def test_numbers_of_numpy_are_taken_as_those_of_python():
    with Slab.shared(SCHEMA, np.int64(8), lanes=np.int64(2), spare=np.int64(3)) as slab:
        assert (slab.capacity, slab.lanes, slab.spare) == (8, 2, 3)
        assert Lanes(slab).claim(np.int64(1), timeout_s=np.float32(1)).number == 0


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
        (
            lambda: SCHEMA.select(1.5),
            "expected a list of keys, strings or tuples",
        ),
        (lambda: SCHEMA[3], "no leaf 3 in these rows: choose from ['reward']"),
        (lambda: RowSchema.from_dict(torch.zeros(2, 3)), "not a row schema"),
        (lambda: RowSchema(torch.zeros(3)), "expected a dtype and a shape for each key"),
        (lambda: Slab.private(SCHEMA, torch.zeros(2)), "capacity must be an integer, got Tensor"),
        (lambda: Slab.private(SCHEMA, 4, device=torch.zeros(2)), "expected a device, as 'cpu'"),
        (lambda: Slab.private(SCHEMA, 4).read(0, keys=3), "expected a list of keys, strings"),
        (lambda: Slab.private(SCHEMA, 4).read(0, device=set()), "expected a device, as 'cpu'"),
        (lambda: Slab.private(SCHEMA, 4).read(np.array("a")), "rows must be integers, got <U1"),
        (lambda: Arrays.private(["a"]), "expected a dictionary of names to a dtype and a shape"),
        (lambda: Arrays.private({"a": 3}), "array 'a': expected a dtype and a shape"),
        (lambda: lanes().claim((3,)), "count must be an integer, got tuple"),
        (lambda: lanes().window(guard=[1]), "guard must be an integer, got list"),
        (lambda: lanes().empty(timeout_s=-1), "timeout_s must be 0 or more seconds, got -1"),
        (lambda: lanes().empty(timeout_s=math.nan), "timeout_s must be 0 or more seconds, got nan"),
        (lambda: lanes().empty(timeout_s="a"), "timeout_s must be a number of seconds, got str"),
        (lambda: lanes().window().numbers(torch.zeros(2) * 1j), "places must be a tensor of int"),
        (lambda: Slab.open(3.5), "expected a path, a string or a pathlib.Path: got float"),
    ],
    ids=map(str, range(24)),
)
def test_bad_input_is_named(call, message):
    with pytest.raises((TypeError, ValueError, KeyError), match=re.escape(message)):
        call()
