"""Items that a thread makes while the ones before are worked on."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator
from typing import TypeVar

Item = TypeVar("Item")
_LOOK_S = 0.05


def read_ahead(items: Generator[Item]) -> Generator[Item]:
    """The items in their order, one of which is ready and one in the making at most."""
    # What the generator raises comes after the items before. Stopping early closes this generator,
    # which ends the thread and closes the given one.
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(1)
    stopped = threading.Event()

    def read() -> None:
        try:
            for item in items:
                ready.put((item,))
                if stopped.is_set():
                    return
            ready.put(None)
        except BaseException as error:
            ready.put(error)
        finally:
            items.close()

    thread = threading.Thread(target=read, name="rl-datasets reader", daemon=True)
    thread.start()
    try:
        while (found := ready.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found[0]
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait for room
            with contextlib.suppress(queue.Empty):
                ready.get_nowait()
            thread.join(_LOOK_S)
