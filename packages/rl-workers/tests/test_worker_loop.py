"""The worker's side, run here: requests in, replies out."""

import pickle

import pytest

from rl_envs import serving
from rl_envs.channel import Channel


class Adder:
    closed = False

    def add(self, *numbers):
        return sum(numbers) or None

    def pair(self):
        return 3, -5

    def text(self):
        return "text"

    def fail(self):
        raise ZeroDivisionError

    def leave(self):
        raise SystemExit(3)

    def close(self):
        self.closed = True


def reply_to(request, *names):
    adder = Adder()
    return serving.answer(adder, [getattr(adder, name) for name in names], request)


def test_a_signal_takes_and_returns_whole_numbers():
    assert serving.numbers_in(reply_to(serving.request_signal(0, (2, -7)), "add")) == (-5,)
    assert serving.numbers_in(reply_to(serving.request_signal(1), "add", "pair")) == (3, -5)
    assert reply_to(serving.request_signal(0), "add") == bytes([serving.DONE])


def test_a_signal_is_a_few_bytes():
    assert len(serving.request_signal(3)) == 2
    assert len(serving.request_signal(3, (5,))) == 10


def test_a_call_returns_anything():
    reply = reply_to(serving.request_call("text", (), {}))
    assert (reply[0], pickle.loads(reply[1:])) == (serving.RESULT, "text")


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (serving.request_call("fail", (), {}), "ZeroDivisionError"),
        (serving.request_call("jump", (), {}), "AttributeError"),
        (serving.request_signal(0), "error"),
        (serving.request_signal(1), "ZeroDivisionError"),
    ],
)
def test_an_exception_is_a_reply(request_, name):
    reply = reply_to(request_, "text", "fail")
    assert reply[0] == serving.FAILED
    assert pickle.loads(reply[1:]).name.endswith(name)


def test_leaving_closes_the_servant_and_says_so():
    near, far = Channel.pair()
    adder = Adder()
    near.send(bytes([serving.LEAVE]))
    serving.serve(far, adder, ["add"])
    assert adder.closed
    assert near.receive() == bytes([serving.DONE])
    near.close()
    far.close()


@pytest.mark.parametrize(("request_", "error"), [(None, EOFError), ("leave", SystemExit)])
def test_any_other_end_closes_the_servant_too(request_, error):
    near, far = Channel.pair()
    adder = Adder()
    if request_ is not None:
        near.send(serving.request_call(request_, (), {}))
    near.close()
    with pytest.raises(error):
        serving.serve(far, adder, [])
    assert adder.closed
    far.close()


def test_a_servant_needs_no_close():
    near, far = Channel.pair()
    near.send(bytes([serving.LEAVE]))
    serving.serve(far, [], ["append"])
    near.close()
    far.close()
