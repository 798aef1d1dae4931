"""Connections of actors: who is let in, what arrives, and what is told of an end. No session."""

import contextlib
import pickle
import socket
from concurrent.futures import Future

import numpy as np
import pytest

from rl_collect.multi.ending import ending_of
from rl_collect.multi.pickled import Pickled
from rl_collect.ray import blocks
from rl_collect.ray import reception as door
from rl_collect.ray.blocks import Announced, Arrival, BlockSender
from rl_collect.ray.reception import Reception, connect
from rl_collect.ray.replies import LocalCalls

HERE, FAR = "here", "far"


@pytest.fixture
def reception():
    with contextlib.closing(Reception(HERE, "127.0.0.1")) as found:
        yield found


@pytest.mark.parametrize(("node", "family"), [(HERE, socket.AF_UNIX), (FAR, socket.AF_INET)])
def test_who_is_invited_is_let_in_from_either_machine(reception, node, family):
    first, second = reception.invite(), reception.invite()
    ends = [connect(one, node) for one in (second, first)]  # they may come in any order
    for invitation, end in zip((first, second), reversed(ends), strict=True):
        with end, reception.welcome(invitation) as met:
            assert met.family == family
            met.send(b"a")
            assert end.recv(8) == b"a"


@pytest.mark.parametrize("node", [HERE, FAR])
def test_strangers_are_shut_out_and_keep_nobody_waiting(reception, node, monkeypatch):
    invitation = reception.invite()
    silent = connect(invitation._replace(token=b""), node)
    wrong = connect(invitation._replace(token=bytes(32)), node)
    short = connect(invitation._replace(token=invitation.token[:31]), node)
    with (
        silent,
        wrong,
        short,
        connect(invitation, node) as end,
        reception.welcome(invitation) as met,
    ):
        assert wrong.recv(1) == short.recv(1) == b""
        again = connect(invitation, node)  # a token that was overheard
        monkeypatch.setattr(door, "_CONNECT_S", 0.1)
        assert reception.welcome(invitation) is None
        assert again.recv(1) == b""
        again.close()
        end.send(b"b")
        assert met.recv(8) == b"b"


def test_a_token_lets_one_in_even_before_it_is_waited_for(reception):
    first, second = reception.invite(), reception.invite()
    with connect(first, HERE) as end, connect(first, HERE) as again, connect(second, HERE):
        again.settimeout(5)
        with reception.welcome(second):
            assert again.recv(1) == b""
        with reception.welcome(first) as met:
            met.send(b"a")
            assert end.recv(8) == b"a"


def test_more_strangers_than_are_known_do_not_grow(reception):
    invitation = reception.invite()
    # on this way nothing at all is sent
    silent = [connect(invitation._replace(token=b""), FAR) for _ in range(100)]
    with connect(invitation, FAR), reception.welcome(invitation):
        ends = [one.recv(1, socket.MSG_DONTWAIT) for one in silent[: 100 + 1 - 64]]
    assert ends == [b""] * 37
    for one in silent:
        one.close()


@pytest.mark.parametrize("node", [HERE, FAR])
def test_a_learner_that_cannot_be_reached_is_done_without(reception, node):
    invitation = reception.invite()
    reception.close()
    assert connect(invitation, node) is None


def test_blocks_arrive_as_they_were_and_short_replies_go_with_ray():
    near, far = socket.socketpair()
    sender = BlockSender(far)
    short = Pickled.of(np.arange(10))
    assert sender.send(short) is short
    arrays = [np.random.default_rng(0).bytes(size) for size in (3_000_001, 1, 700_000)]
    value = [np.frombuffer(one, np.uint8).copy() for one in arrays]
    replies = [sender.send(Pickled.of(value)) for _ in range(2)]
    for reply in replies:
        assert isinstance(reply, Announced)
        assert len(pickle.dumps(reply)) < 1000
        found = Arrival(near, reply).take(5.0)
        assert [one.tobytes() for one in found.open()] == arrays
        assert all(one.ctypes.data % 64 == 0 for one in found.buffers)
    near.close()
    sender.close()


def test_a_block_that_stops_in_the_middle_is_an_end():
    near, far = socket.socketpair()
    far.send(b"part")
    far.close()
    with near, pytest.raises(ConnectionError, match="ended in the middle of a batch"):
        Arrival(near, Announced(b"", [5])).take(5.0)


def test_a_block_that_comes_in_parts_holds_nobody_up_and_goes_on_where_it_was():
    near, far = socket.socketpair()
    with near, far:
        arrival = Arrival(near, Announced(pickle.dumps(7), [3, 0, 4]))
        for part in (b"ab", b"cde", b"f"):
            assert not arrival.advance()  # nothing is there
            with pytest.raises(TimeoutError):
                arrival.take(0.0)
            far.send(part)
            assert not arrival.advance()
        far.send(b"g_next")
        assert arrival.advance()
        found = arrival.take(0.0)
        assert [one.tobytes() for one in found.buffers] == [b"abc", b"", b"defg"]
        assert near.recv(9) == b"_next"  # that of the reply that follows


def test_a_block_that_stalls_is_an_end_that_names_the_port(monkeypatch):
    monkeypatch.setattr(blocks, "_STALL_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as far:
            near, _ = listening.accept()
            far.send(b"part")
            message = rf"nothing came for 0.05 s by its connection to 127\.0\.0\.1:{port}, in the"
            with near, pytest.raises(ConnectionError, match=message):
                Arrival(near, Announced(b"", [5])).take(20.0)


def test_the_first_free_port_of_those_that_are_given_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("", 0)) as other:
        used, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        with contextlib.closing(Reception(HERE, "127.0.0.1", [used, free])) as found:
            assert found.invite().address == ("127.0.0.1", free)
        with pytest.raises(OSError, match=rf"no port of 127.0.0.1 among ports=\[{used}\] is free"):
            Reception(HERE, "127.0.0.1", [used])


def test_a_sender_whose_learner_reads_nothing_can_be_closed():
    near, far = socket.socketpair()
    sender = BlockSender(far)
    sender.send(Pickled.of(np.zeros(50_000_000, np.uint8)))
    sender.close()  # while most of it is not sent
    near.close()


def local_calls(ended):
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return LocalCalls(near, ended), far


def test_a_call_is_ready_when_its_reply_is_there_or_its_end_is_known():
    ended = Future()
    calls, far = local_calls(ended)
    assert calls.submit(b"request") is calls
    assert not calls.is_ready()
    assert far.recv(100) == b"\0request"
    far.send(b"\0" + pickle.dumps(Pickled.of(7)))
    assert calls.is_ready()
    assert calls.take(1.0).open() == 7
    with pytest.raises(TimeoutError):
        calls.take(0.01)
    far.close()
    assert not calls.is_ready()  # no call blocks until Ray says how it ended
    assert calls.fileno() == -1
    ended.set_exception(OSError("killed"))
    assert calls.is_ready()
    calls.close()


def test_a_request_to_who_is_gone_is_answered_by_its_end():
    pytest.importorskip("ray", reason="Ray is not installed: rl-collect[ray]")
    from ray.exceptions import RayError

    ended = Future()
    calls, far = local_calls(ended)
    far.close()
    calls.submit(b"request")
    ended.set_exception(RayError("\nfirst\nThe actor is dead because of a test.\n"))
    assert calls.is_ready()
    with pytest.raises(ConnectionError, match=r"^The actor is dead because of a test\.$"):
        calls.take(1.0)
    calls.close()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[/gloo/pair.cc:534] Connection closed by peer [::1]:5\nmore",
            "Connection closed by peer [::1]:5",
        ),
        (
            "\n The actor died.\n It is dead because it was killed.\n",
            "It is dead because it was killed.",
        ),
        ("", "RuntimeError"),
        ("x" * 900, "x" * 300),
    ],
)
def test_an_end_is_told_in_one_line(text, line):
    assert ending_of(RuntimeError(text)) == line
