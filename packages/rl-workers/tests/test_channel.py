"""Messages between two ends: whole, in order, of any length, and never half."""

import gc
import socket
import threading

import pytest

from rl_workers.channel import PIECE_BYTES, Channel


@pytest.fixture
def ends():
    near, far = Channel.pair()
    yield near, far
    near.close()
    far.close()


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES, 1_000_003])
def test_a_message_of_any_length_arrives_whole(ends, length):
    near, far = ends
    message = (bytes(range(256)) * (length // 256 + 1))[:length]
    sender = threading.Thread(target=near.send, args=(message,))
    sender.start()
    assert far.receive() == message
    sender.join()


def test_messages_stay_apart_and_in_order(ends):
    near, far = ends
    for message in (b"one", b"", b"three"):
        near.send(message)
    assert [far.receive() for _ in range(3)] == [b"one", b"", b"three"]


def test_packet_sent_before_closing_still_arrives(ends):
    near, far = ends
    near.send(b"last")
    near.close()
    assert far.receive() == b"last"
    with pytest.raises(EOFError):
        far.receive()


def test_the_end_with_unread_data_is_an_end_too(ends):
    near, far = ends
    near.send(b"never read")
    far.close()
    with pytest.raises(EOFError):
        near.receive()
    with pytest.raises(BrokenPipeError):
        near.send(b"more")


def test_a_limit_bounds_both_directions(ends):
    near, _ = ends
    near.limit(0.01)
    with pytest.raises(TimeoutError, match="nothing came"):
        near.receive()
    with pytest.raises(TimeoutError, match="took nothing"):
        near.send(bytes(10_000_000))


def test_a_message_that_was_cut_off_is_followed_by_none(ends):
    near, _ = ends
    near.limit(0.01)
    with pytest.raises(TimeoutError):
        near.send(bytes(10_000_000))
    with pytest.raises(ValueError, match="cut off"):
        near.send(b"next")


def test_receive_keeps_the_first_pieces_of_a_late_message():
    raw, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far = Channel(end)
    far.limit(0.01)
    raw.send(b"\1first ")
    with pytest.raises(TimeoutError):
        far.receive()
    raw.send(b"\0second")
    assert far.receive() == b"first second"
    raw.close()
    far.close()


def test_a_limit_of_none_is_none(ends):
    near, far = ends
    near.limit(0.01)
    near.limit(None)
    threading.Timer(0.05, far.send, (b"late",)).start()
    assert near.receive() == b"late"


def test_a_closed_end_says_so(ends):
    near, _ = ends
    near.close()
    assert near.fileno() == -1
    with pytest.raises(ValueError, match="closed"):
        near.send(b"")
    with pytest.raises(ValueError, match="closed"):
        near.receive()


def test_a_dropped_end_is_closed():
    near, far = Channel.pair()
    del near
    gc.collect()
    with pytest.raises(EOFError):
        far.receive()
    far.close()
