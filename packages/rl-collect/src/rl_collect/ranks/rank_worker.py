"""What a rank does that is not the learner's: it holds a worker, and answers the learner."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from rl_collect.multi.pickled import Pickled
from rl_collect.multi.worker_host import WorkerHost
from rl_collect.ranks.group import RankGroup, machine
from rl_collect.ranks.messages import REPLY, REQUEST, Sending, receive
from rl_collect.ranks.ranks import CALL, START


def serve(group: RankGroup, make: Callable[[], Any]) -> None:
    """Answer calls until the learner closes the worker; raises `RuntimeError` if it is gone."""
    host = WorkerHost()
    while True:
        kind, *parts = receive(0, group.handle, REQUEST).open()
        if kind == START:
            reply = host.start(make, machine(), None)
        elif kind == CALL:
            reply = _call(host, *parts)
        else:
            reply = host.close()
        Sending(reply, 0, group.handle, REPLY).wait()
        if kind not in (START, CALL):
            return


def _call(host: WorkerHost, request: bytes, version: int, weights: list[Any]) -> Pickled:
    if weights:
        host.offer_weights(version, lambda: weights[0])
    return host.call(lambda: pickle.loads(request))
