"""The worker's side, run here: requests in, replies out."""

import os
import pickle
import subprocess
import sys

import pytest

from rl_workers import worker_loop
from rl_workers.channel import Channel


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
    return worker_loop.answer(adder, [getattr(adder, name) for name in names], request)


def test_a_signal_takes_and_returns_whole_numbers():
    assert worker_loop.numbers_in(reply_to(worker_loop.request_signal(0, (2, -7)), "add")) == (-5,)
    assert worker_loop.numbers_in(reply_to(worker_loop.request_signal(1), "add", "pair")) == (3, -5)
    assert reply_to(worker_loop.request_signal(0), "add") == bytes([worker_loop.DONE])


def test_a_signal_is_a_few_bytes():
    assert len(worker_loop.request_signal(3)) == 2
    assert len(worker_loop.request_signal(3, (5,))) == 10


def test_a_call_returns_anything():
    reply = reply_to(worker_loop.request_call("text", (), {}))
    assert (reply[0], pickle.loads(reply[1:])) == (worker_loop.RESULT, "text")


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (worker_loop.request_call("fail", (), {}), "ZeroDivisionError"),
        (worker_loop.request_call("jump", (), {}), "AttributeError"),
        (worker_loop.request_signal(0), "error"),
        (worker_loop.request_signal(1), "ZeroDivisionError"),
    ],
)
def test_an_exception_is_a_reply(request_, name):
    reply = reply_to(request_, "text", "fail")
    assert reply[0] == worker_loop.FAILED
    assert pickle.loads(reply[1:]).name.endswith(name)


def test_leave_closes_the_target_and_replies():
    near, far = Channel.pair()
    adder = Adder()
    near.send(bytes([worker_loop.LEAVE]))
    worker_loop.serve(far, adder, ["add"])
    assert adder.closed
    assert near.receive() == bytes([worker_loop.DONE])
    near.close()
    far.close()


@pytest.mark.parametrize(("request_", "error"), [(None, EOFError), ("leave", SystemExit)])
def test_serve_closes_the_target_where_the_loop_ends_by_an_error(request_, error):
    near, far = Channel.pair()
    adder = Adder()
    if request_ is not None:
        near.send(worker_loop.request_call(request_, (), {}))
    near.close()
    with pytest.raises(error):
        worker_loop.serve(far, adder, [])
    assert adder.closed
    far.close()


def test_serve_accepts_a_target_without_close():
    near, far = Channel.pair()
    near.send(bytes([worker_loop.LEAVE]))
    worker_loop.serve(far, [], ["append"])
    near.close()
    far.close()


LATE = """
import sys
from rl_workers import WorkerPool

class Late:
    def threads(self):
        assert "torch" not in sys.modules
        import torch
        return torch.get_num_threads()

if __name__ == "__main__":
    with WorkerPool([Late], start_method="spawn", num_threads=1) as pool:
        print(pool.call(0, "threads"), "torch" in sys.modules)
"""


def test_torch_has_its_number_of_threads_where_a_worker_imports_it_late(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LATE)
    two = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    told = subprocess.run(
        [sys.executable, str(script)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | two,
    )
    assert told.stdout == "1 False\n"
