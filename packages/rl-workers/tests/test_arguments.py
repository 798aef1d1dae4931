"""Wrong arguments of public calls are named."""

import math
import re
from fractions import Fraction

import pytest

from rl_workers import Channel, WorkerPool, context_of

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
ONE = [list]
WORDS = "must be a number of seconds, got"


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(ONE, signals=["append"], start_method="fork") as made:
        yield made
        assert made.pending == [None]  # no refused call reached the worker


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda pool: pool.call("0", "clear"), TypeError, "index must be an integer, got str"),
        (lambda pool: pool.call(0, b"clear"), TypeError, "name must be a text, got bytes"),
        (lambda pool: pool.signal_all(7), TypeError, "name must be a text, got int"),
        (lambda pool: pool.signal(0, "append", 2**64), TypeError, "whole numbers of 64 bits"),
        (lambda pool: pool.receive(0, timeout_s="a"), TypeError, f"timeout_s {WORDS} str"),
        (lambda pool: pool.receive_all(timeout_s=(1,)), TypeError, f"timeout_s {WORDS} tuple"),
        (lambda pool: pool.revive(timeout_s=True), TypeError, f"timeout_s {WORDS} bool"),
        (lambda pool: pool.has_reply(0, timeout_s=-1), ValueError, "between 0 and 2,147,483 s"),
        (lambda pool: pool.receive_all(timeout_s=math.nan), ValueError, "got nan"),
        (lambda pool: pool.close(timeout_s=math.inf), ValueError, "got inf"),
        (lambda pool: pool.call_all("append", []), ValueError, "a list of 1 tuples"),
        (lambda pool: pool.call_all("append", 3), ValueError, "of 1 tuples, .*, got 3"),
    ],
)
def test_a_pool_names_what_it_cannot_use(pool, call, error, words):
    with pytest.raises(error, match=words):
        call(pool)


def test_limits_may_be_any_real_numbers():
    limits = {"timeout_s": Fraction(121, 2), "start_timeout_s": Fraction(60)}
    with WorkerPool(ONE, start_method="fork", **limits) as pool:
        pool.restart(0)
        assert pool.call(0, "copy") == []


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (list, {}, TypeError, "make must be a list of functions, got type"),
        (ONE, {"signals": "append"}, TypeError, "signals must be a list of names, got str"),
        (ONE, {"signals": [1]}, TypeError, "a signal must be a text, got int"),
        (ONE, {"timeout_s": "1"}, TypeError, f"timeout_s {WORDS} str"),
        (ONE, {"start_timeout_s": 0}, ValueError, "limits are positive: got start_timeout_s=0"),
        (ONE, {"num_threads": 1.5}, TypeError, "num_threads must be an integer, got float"),
        (ONE, {"name": None}, TypeError, "name must be a text, got NoneType"),
    ],
)
def test_a_pool_is_refused_before_a_process_starts(make, options, error, words):
    with pytest.raises(error, match=words):
        WorkerPool(make, start_method="fork", **options)


def test_a_channel_names_what_it_cannot_use():
    near, far = Channel.pair()
    with pytest.raises(TypeError, match="made of a socket, got int"):
        Channel(near.fileno())
    with pytest.raises(TypeError, match="a message is bytes, got str"):
        near.send("step")
    with pytest.raises(TypeError, match=f"timeout_s {WORDS} list"):
        near.limit([1])
    near.send(b"step")
    assert far.receive() == b"step"
    near.close()
    far.close()


def test_methods_of_starting_are_listed():
    with pytest.raises(ValueError, match=re.escape("got ['fork']")):
        context_of(["fork"])
    with pytest.raises(TypeError, match="preload takes a list of names of modules, got bool"):
        context_of(None, preload=True)
