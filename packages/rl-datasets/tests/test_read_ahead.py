import threading

import pytest

from rl_datasets.read_ahead import read_ahead


def made(count, log):
    try:
        for number in range(count):
            log.append(number)
            yield number
        raise ValueError("the file is damaged")
    finally:
        log.append("closed")


def readers():
    return [one for one in threading.enumerate() if one.name == "rl-datasets reader"]


def test_items_come_in_order_and_an_error_after_them():
    found, log = [], []
    with pytest.raises(ValueError, match="the file is damaged"):
        found.extend(read_ahead(made(20, log)))
    assert not readers()
    assert log == [*range(20), "closed"]


def test_one_is_ready_and_one_in_the_making():
    log = []
    ahead = read_ahead(made(20, log))
    next(ahead)
    (thread,) = readers()
    thread.join(0.2)
    assert max(log) <= 2
    ahead.close()


def test_stopping_early_ends_the_thread_and_the_iterator():
    log = []
    ahead = read_ahead(made(20, log))
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    ahead.close()
    assert not readers()
    assert log[-1] == "closed"
