"""Connections of actors to the learner: one of its machine calls by them, others send batches."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_CONNECT_S = 5.0
_TOKEN_BYTES = 32
_QUIET_S = 60  # firewalls forget connections on which nothing is sent
_MAX_UNKNOWN = 64  # connections that have not said yet who they are


class Invitation(NamedTuple):
    """Where an actor finds the learner, and what proves that it was invited."""

    node: str  # the learner's machine
    local: bytes  # a Unix socket, for actors on that machine
    address: tuple[str, int]  # for all others
    token: bytes  # drawn for one start of one actor, taken once


class Reception:
    """Lets those in that were invited."""

    # Strangers may reach the address. Ray hands the token over; who has none is shut out, and
    # nothing that comes from another machine is unpickled: it is bytes of rows alone, whose number
    # and schema come by Ray. They are no more secret on the wire than what Ray itself sends.

    def __init__(self, node: str, host: str, ports: Sequence[int] = (0,)) -> None:
        name = b"\0rl-collect-" + secrets.token_hex(16).encode()  # no file that could be left
        distant = _listening(host, ports)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        local.bind(name)
        local.listen(128)
        self._open = node, name, distant.getsockname()[:2]
        self._doors = {one.fileno(): one for one in (local, distant)}
        for one in self._doors.values():
            one.setblocking(False)
        self._invited: set[bytes] = set()
        self._unknown: dict[int, socket.socket] = {}
        self._arrived: dict[bytes, socket.socket] = {}

    def invite(self) -> Invitation:
        """An invitation for one actor."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._invited.add(token)
        return Invitation(*self._open, token)

    def welcome(self, invitation: Invitation) -> socket.socket | None:
        """The connection of an actor that says it has connected; None if it does not arrive."""
        deadline = time.monotonic() + _CONNECT_S
        while invitation.token not in self._arrived:
            descriptors = (*self._doors, *self._unknown)
            ready = wait_readable(descriptors, max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for descriptor in ready:
                if descriptor in self._doors:
                    self._let_in(self._doors[descriptor])
                elif descriptor in self._unknown:
                    self._identify(self._unknown.pop(descriptor))
        self._invited.discard(invitation.token)
        return self._arrived.pop(invitation.token, None)

    def close(self) -> None:
        """Close the listening sockets and all connections."""
        for found in (self._doors, self._unknown, self._arrived):
            for one in found.values():
                one.close()

    def _let_in(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it may have hung up already
            end, _ = door.accept()
            end.setblocking(False)
            self._unknown[end.fileno()] = end
        while len(self._unknown) > _MAX_UNKNOWN:
            self._unknown.pop(next(iter(self._unknown))).close()

    def _identify(self, end: socket.socket) -> None:
        try:
            given = end.recv(_TOKEN_BYTES)
        except OSError:
            given = b""
        known = [token for token in self._invited if hmac.compare_digest(token, given)]
        if not known:
            end.close()
            return
        self._invited.discard(known[0])
        end.setblocking(True)
        self._arrived[known[0]] = end


def wait_readable(descriptors: Iterable[int], timeout_s: float) -> list[int]:
    """Wait until there is something to read; where."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in waiting.poll(timeout_s * 1000)]


def _listening(host: str, ports: Sequence[int]) -> socket.socket:
    """A socket on the first port that is free; 0 means any."""
    for port in ports:
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), backlog=128)
    msg = (
        f"no port of {host} among ports={ports} is free for connections of other machines: give "
        "as many as collectors run at a time, or None for any."
    )
    raise OSError(msg)


def connect(invitation: Invitation, node: str) -> socket.socket | None:
    """Follow an invitation; None if the learner cannot be reached."""
    # an actor in a container of its own, or behind a firewall, does without
    end: socket.socket | None = None
    try:
        if node == invitation.node:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            end.connect(invitation.local)
        else:
            end = socket.create_connection(invitation.address, _CONNECT_S)
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_S)
        end.sendall(invitation.token)
    except OSError:
        if end is not None:
            end.close()
        return None
    return end
