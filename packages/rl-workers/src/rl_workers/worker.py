"""The parent's side of one worker process."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import time
import warnings
import weakref
from multiprocessing.context import BaseContext
from typing import Any

from rl_workers import worker_loop
from rl_workers.channel import Channel
from rl_workers.errors import CallOutOfOrder, WorkerDied, WorkerTimeout, describe_exit
from rl_workers.exceptions import Failure
from rl_workers.start_methods import clear_unset_modes
from rl_workers.worker_loop import WorkerConfig

STARTING = "starting"
_DYING_S = 5.0  # for the exit code of a process that is gone to become known


class Worker:
    """The process of one worker and this side's end of the channel to it."""

    # It owns three things: the process, the channel, and a descriptor of the process that tells its
    # death at once, even if other processes inherited the other end of the channel. One call is
    # pending at a time; a new worker has its start pending.

    def __init__(
        self,
        context: BaseContext,
        config: WorkerConfig,
        *,
        index: int = 0,
        name: str = "worker",
        timeout_s: float | None = None,
    ) -> None:
        self.index = index
        self.pending: str | None = STARTING
        self._name = name
        self._channel, far = Channel.pair()
        worker_loop.PARENT_ENDS.add(self._channel)
        self._descriptor = -1
        self._close_descriptor: Any = None
        self._ending: str | None = None
        self.pid = 0
        self._is_over = False
        self.exit_code: int | None = None
        clear_unset_modes()
        # not a daemon, which may not start workers of its own: its lifeline does what daemons do
        self._process = context.Process(  # type: ignore[attr-defined]
            target=worker_loop.run, args=(far, config), name=f"{name}-{index}", daemon=False
        )
        try:
            with warnings.catch_warnings():
                # the risks of fork are documented; Python 3.12 and later warns at every start
                warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
                self._process.start()
            self.pid = self._process.pid
            self._descriptor = os.pidfd_open(self.pid)
            self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
            self._close_descriptor.atexit = False
        except BaseException:
            self.kill()
            raise
        finally:
            far.close()
        self._channel.limit(timeout_s)
        self._events = select.poll()
        for descriptor in self.descriptors:
            self._events.register(descriptor, select.POLLIN)

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to be gone."""
        return self._ending is not None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return self._is_over or self._is_gone()

    @property
    def descriptors(self) -> tuple[int, int]:
        """Readable when a reply is there, and when the process is gone."""
        return self._channel.fileno(), self._descriptor

    @property
    def who(self) -> str:
        """The worker as messages call it: its name, its place and its process."""
        return f"{self._name} {self.index} (process {self.pid})"

    def send(self, request: bytes, what: str) -> None:
        """Send a request; its reply is to be taken before the next one."""
        if self._ending is not None:
            raise self._death()
        if self.pending is not None:
            raise CallOutOfOrder(
                f"{self.who} cannot take {what!r}: {self.pending!r} is pending. Receive its reply "
                "first."
            )
        self.pending = what
        try:
            self._channel.send(request)
        except BrokenPipeError:
            raise self._death() from None
        except TimeoutError as error:
            raise WorkerTimeout(f"{self.who} does not take {what!r}: {error}") from None

    def has_event(self, timeout_s: float | None) -> bool:
        """Wait until there is a reply or the process is gone; False where neither came in time."""
        return bool(self._events.poll(None if timeout_s is None else timeout_s * 1000))

    def take_reply(self, timeout_s: float | None = None) -> Any:
        """Wait for the reply to the call that is pending."""
        if self._ending is not None:
            raise self._death()
        if self.pending is None:
            raise CallOutOfOrder(f"{self.who} has no call pending: there is no reply to receive.")
        if not self.has_event(timeout_s):
            raise self.timeout_error(timeout_s)
        # in this order: once the process is gone no reply can follow, so an empty channel is final
        if self._is_gone() and not self._has_message():
            raise self._death()
        return self.read()

    def read(self) -> Any:
        """Take a reply that is known to be there, as `take_reply` does."""
        try:
            reply = self._channel.receive()
        except EOFError:
            raise self._death() from None
        except TimeoutError as error:
            if self._is_gone():  # and somebody else still holds the other end
                raise self._death() from None
            raise WorkerTimeout(f"{self.who} stopped in the middle of a reply: {error}") from None
        doing, self.pending = self.pending, None
        if reply[0] == worker_loop.DONE:
            return worker_loop.numbers_in(reply)
        if reply[0] == worker_loop.RESULT:
            return pickle.loads(reply[1:])
        failure: Failure = pickle.loads(reply[1:])
        raise failure.revive(f"{self.who}, in {doing!r}")

    def probe(self) -> None:
        """Ask an idle worker for a sign of life; a death may not be known before."""
        if self.pending is None:
            with contextlib.suppress(WorkerDied, WorkerTimeout):
                # any object has this method
                self.send(worker_loop.request_call("__sizeof__", (), {}), "revive")

    def is_responsive(self, deadline: float) -> bool:
        """Take the reply that is pending, and say whether the worker is there for another call."""
        try:
            self.take_reply(max(deadline - time.monotonic(), 0))
        except (WorkerDied, WorkerTimeout):
            return False
        except Exception:  # of the pending call, whose caller has had an error already
            return not self.is_dead
        return True

    def timeout_error(self, timeout_s: float | None) -> WorkerTimeout:
        """The error for a reply that did not come in time."""
        return WorkerTimeout(
            f"{self.who} did not answer {self.pending!r} within {timeout_s or 0:g} s. It may "
            "still: receive again, raise the timeout, or close."
        )

    def ask_to_leave(self, timeout_s: float) -> None:
        """Ask an unneeded worker to leave, whatever it is doing; a dead or full one is let be."""
        with contextlib.suppress(OSError, ValueError):
            self._channel.limit(timeout_s)
            self._channel.send(bytes([worker_loop.LEAVE]))

    def drain(self, deadline: float) -> BaseException | None:
        """Read what a leaving worker still says, until its process ends or the deadline is over."""
        last = None
        with contextlib.suppress(OSError, EOFError, ValueError):
            while self.has_event(max(deadline - time.monotonic(), 0)) and self._has_message():
                last = self._channel.receive()
        self._is_gone(max(deadline - time.monotonic(), 0))  # the channel ends before the process
        if last is None or last[0] != worker_loop.FAILED:
            return None
        failure: Failure = pickle.loads(last[1:])
        return failure.revive(f"{self.who}, in 'close'")

    def kill(self, deadline: float | None = None) -> None:
        """End the process, by force unless it ends by the deadline, and let go of everything."""
        if self.pid and not self._is_over:
            self._is_over = True
            if deadline is None or not self._is_gone(max(deadline - time.monotonic(), 0)):
                self._process.kill()
            self._process.join()
            self._note_end()
            self._process.close()
        if self._close_descriptor is not None:
            self._close_descriptor()
        self._channel.close()

    def _is_gone(self, timeout_s: float = 0) -> bool:
        return _is_ready(self._descriptor, timeout_s)

    def _has_message(self) -> bool:
        return _is_ready(self._channel.fileno(), 0)

    def _death(self) -> WorkerDied:
        if self._ending is None:
            # not join(), which waits for all that have inherited a pipe of multiprocessing's
            if self._is_gone(_DYING_S) and self._process.exitcode is None:
                self._process.join(_DYING_S)  # until the server of forks has told
            self._note_end()
        doing = "while it waited for a call" if self.pending is None else f"in {self.pending!r}"
        advice = ""
        if self.pending == STARTING:
            advice = (
                " A script that starts workers by 'spawn' or 'forkserver' needs its own lines "
                "under `if __name__ == '__main__':`, because every worker imports it."
            )
        return WorkerDied(f"{self.who} {self._ending} {doing}.{advice}")

    def _note_end(self) -> None:
        self.exit_code = self._process.exitcode
        self._ending = self._ending or describe_exit(self.exit_code)


def _is_ready(descriptor: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))
