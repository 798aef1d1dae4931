"""The ring of one process, against a list of the numbers that it holds."""

from __future__ import annotations

import torch
from hypothesis import settings

from rl_replay.storages.private_session import PrivateRing
from rl_replay.testing import RingMachine

TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_a_ring_of_another_size_goes_on_with_new_numbers_at_position_0() -> None:
    ring = PrivateRing(4, after=9)
    assert ring.reserve(2) == (slice(0, 2), range(12, 14))
    assert ring.written == 0


def test_numbers_need_more_than_32_bits():
    ring = PrivateRing(5)
    first = 7 * 2**40
    ring.restore(published=first + 3, floor=first - 1)
    ring.reserve(4)
    ring.publish(4)
    numbers = torch.arange(first + 2, first + 7)
    assert ring.window().numbers(torch.arange(5)).tolist() == numbers.tolist()
    assert ring.is_live(torch.tensor([first + 1, first + 2, first + 6, first + 7, 6])).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert ring.numbers_at(ring.positions(numbers)).tolist() == numbers.tolist()
