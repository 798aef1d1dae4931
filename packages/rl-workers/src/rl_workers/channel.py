"""Messages between two processes of one machine: whole, in order, of any length."""

from __future__ import annotations

import math
import socket
import struct
import weakref
from typing import Self

from rl_workers.arguments import seconds

PIECE_BYTES = 64 * 1024
"""A longer message travels in pieces of this many bytes; the kernel keeps each of them whole."""

_LAST, _MORE = b"\0", b"\1"


class Channel:
    """One end of a pair of connected sockets that keep messages apart.

    A message of a few bytes is one system call on either side, half of what a pipe of
    `multiprocessing` takes. The first byte of a packet says whether more of the message follows.

    A channel that was cut off in the middle of a long message sends no other one: the receiver
    could not tell the two apart.

    Args:
        end: A connected socket of kind `SOCK_SEQPACKET`; from here on the channel's to close.

    Example:
        >>> near, far = Channel.pair()
        >>> near.send(b"step")
        >>> far.receive()
        b'step'
        >>> near.close(), far.close()
        (None, None)
    """

    def __init__(self, end: socket.socket) -> None:
        if not isinstance(end, socket.socket):
            raise TypeError(
                f"a channel is made of a socket, got {type(end).__name__}: use Channel.pair()."
            )
        self._end = end
        self._pieces: list[bytes] = []  # of a message that has not arrived whole yet
        self._is_broken = False
        # a channel that is garbage-collected is closed, so that its other end sees the end of file
        weakref.finalize(self, end.close).atexit = False

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two ends: what one sends the other receives.

        Raises:
            OSError: No descriptor is left.

        Example:
            >>> near, far = Channel.pair()
            >>> near.close(), far.close()
            (None, None)
        """
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def limit(self, timeout_s: float | None) -> None:
        """Set the longest time to wait for a single packet; None waits without a limit.

        The kernel keeps the time, so a limit costs no further system call.

        Example:
            >>> near, far = Channel.pair()
            >>> near.limit(0.01)
            >>> near.receive()
            Traceback (most recent call last):
            TimeoutError: nothing came within the limit of this channel.
            >>> near.close(), far.close()
            (None, None)
        """
        fraction, full = math.modf(0 if timeout_s is None else seconds(timeout_s, "timeout_s"))
        # the kernel takes zero for no limit, so the shortest one is a microsecond
        micros = max(int(fraction * 1e6), int(timeout_s is not None and full == 0))
        value = struct.pack("ll", int(full), micros)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def send(self, message: bytes) -> None:
        """Send a message, waiting while the receiver's buffer is full.

        Raises:
            BrokenPipeError: The other end is closed.
            TimeoutError: The receiver took nothing within the limit.
            ValueError: An earlier message was cut off in the middle, or the channel is closed.

        Example:
            >>> near, far = Channel.pair()
            >>> near.send(bytes(100_000))
            >>> len(far.receive())
            100000
            >>> near.close(), far.close()
            (None, None)
        """
        if not isinstance(message, bytes):
            raise TypeError(f"a message is bytes, got {type(message).__name__}: pickle it first.")
        if self._is_broken:
            raise ValueError("a message was cut off on this channel: close it, make another.")
        if len(message) < PIECE_BYTES:
            self._put(_LAST + message)
            return
        self._is_broken = True  # until the last piece is sent
        for start in range(0, len(message), PIECE_BYTES):
            stop = start + PIECE_BYTES
            self._put((_LAST if stop >= len(message) else _MORE) + message[start:stop])
        self._is_broken = False

    def receive(self) -> bytes:
        """Wait for the next message.

        Raises:
            EOFError: The other end is closed.
            TimeoutError: Nothing came within the limit; what came before is kept for later.
            ValueError: The channel is closed.

        Example:
            >>> near, far = Channel.pair()
            >>> far.close()
            >>> near.receive()
            Traceback (most recent call last):
            EOFError
            >>> near.close()
        """
        packet = self._take()
        if packet[0] == 0 and not self._pieces:
            return packet[1:]
        self._pieces.append(packet[1:])
        while packet[0] != 0:
            packet = self._take()
            self._pieces.append(packet[1:])
        message = b"".join(self._pieces)
        self._pieces.clear()
        return message

    def fileno(self) -> int:
        """The descriptor, readable when a message or the end is there; -1 once closed.

        Example:
            >>> near, far = Channel.pair()
            >>> near.fileno() != far.fileno()
            True
            >>> near.close(), far.close()
            (None, None)
        """
        return self._end.fileno()

    def close(self) -> None:
        """Close this end; a second call does nothing. The other end sees the end of file.

        Example:
            >>> near, far = Channel.pair()
            >>> near.close(), near.close(), far.close()
            (None, None, None)
        """
        self._end.close()

    def _put(self, packet: bytes) -> None:
        try:
            self._end.send(packet)
        except BlockingIOError:
            raise TimeoutError("the receiver took nothing within the limit.") from None
        except ConnectionError:
            raise BrokenPipeError("the other end of this channel is closed.") from None
        except OSError:
            self._require_open()
            raise

    def _take(self) -> bytes:
        try:
            packet = self._end.recv(PIECE_BYTES + 1)
        except BlockingIOError:
            raise TimeoutError("nothing came within the limit of this channel.") from None
        except ConnectionError:
            packet = b""
        except OSError:
            self._require_open()
            raise
        if not packet:
            raise EOFError
        return packet

    def _require_open(self) -> None:
        if self._end.fileno() < 0:
            raise ValueError("this channel is closed.") from None
