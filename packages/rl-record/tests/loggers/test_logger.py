import copy
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch

from rl_record import Histogram, JSONLLogger, Logger, Metrics, RunSettings, Video, read_run


class Kept:
    """A sink that keeps events, fails where told, and can be held back."""

    def __init__(self):
        self.events, self.closed, self.fail, self.refused = [], 0, None, ()
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, events):
        self.may_write.wait(30)
        if self.fail is not None:
            raise self.fail
        for event in events:
            if isinstance(event, self.refused):
                raise ValueError(f"{type(event).__name__} is refused")
        self.events += events

    def close(self):
        self.closed += 1


@pytest.fixture
def sink():
    return Kept()


@pytest.fixture
def logger(sink):
    with Logger("run", sink) as made:
        yield made


def writer_thread():
    """The thread of the one logger that writes."""
    (thread,) = [each for each in threading.enumerate() if each.name == "rl-record"]
    return thread


def test_numbers_of_every_kind_become_python_numbers(logger, sink):
    given = {
        "float": 0.5,
        "int": 3,
        "flag": True,
        "numpy": np.float32(0.25),
        "array": np.array([7]),
        "scalar": torch.tensor(2, dtype=torch.int64),
        "column": torch.tensor([[1.5]], dtype=torch.float64),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "trained": torch.tensor(4.0, requires_grad=True),
        "mark": torch.tensor([True]),
    }
    logger.log_metrics(given, step=5)
    logger.flush()
    values = {"float": 0.5, "int": 3, "flag": 1, "numpy": 0.25, "array": 7}
    values |= {"scalar": 2, "column": 1.5, "half": 0.5, "trained": 4.0, "mark": 1}
    assert sink.events[0].values == values
    assert {type(value) for value in sink.events[0].values.values()} == {int, float}
    assert sink.events[0].step == 5


def test_tensor_is_read_as_it_was_when_it_was_logged(logger, sink):
    sink.may_write.clear()
    running = torch.zeros(())
    for step in range(5):
        running += 1
        logger.log_scalar("sum", running, step)
    sink.may_write.set()
    logger.flush()
    assert [event.values["sum"] for event in sink.events] == [1, 2, 3, 4, 5]


def test_entries_without_a_step_get_the_one_after_the_last(logger, sink):
    logger.log_scalar("a", 1)
    logger.log_scalar("a", 2, step=10)
    logger.log_scalar("b", 3)
    logger.flush()
    assert [event.step for event in sink.events] == [0, 10, 11]
    assert logger.last_step == 11


def test_step_that_goes_backwards_is_kept_marked_and_warned_of(logger, sink):
    logger.log_scalar("a", 1, step=10)
    logger.log_scalar("b", 1, step=4)  # the first of its name
    with pytest.warns(UserWarning, match="step 9 comes after step 10 of 'run'"):
        logger.log_scalar("a", 2, step=9)
    with warnings.catch_warnings(action="error"):
        logger.log_scalar("a", 3, step=9)  # still after step 10, said once
        logger.log_scalar("a", 4, step=10)
    logger.flush()
    assert [event.is_backwards for event in sink.events] == [False, False, True, True, False]


def test_numbers_that_are_not_finite_are_kept_and_counted(logger, sink):
    for value in (float("nan"), torch.tensor(torch.inf), 1.0):
        logger.log_metrics({"loss": value, "good": 1})
    logger.flush()
    assert logger.stats() == {"written": 3, "waiting": 0, "not_finite": {"loss": 2}}
    assert np.isnan(sink.events[0].values["loss"])


def test_other_events_arrive_in_their_order(logger, sink):
    frames = torch.zeros(2, 3, 4, 6, dtype=torch.uint8)
    logger.log_hparams({"lr": 0.1})
    logger.log_histogram("weights", torch.ones(2, 3), 3, bins=5)
    logger.log_video("play", frames[None], 4, fps=10)
    frames += 1
    logger.flush()
    assert [type(event) for event in sink.events] == [RunSettings, Histogram, Video]
    assert sink.events[2].frames.shape == (2, 3, 4, 6)
    assert not sink.events[2].frames.any()


def test_caller_does_not_wait_for_the_sink(logger, sink):
    sink.may_write.clear()
    for step in range(1000):
        logger.log_scalar("a", step)
    assert logger.stats()["written"] == 0
    with pytest.raises(TimeoutError, match=r"events after 0\.01 s"):
        logger.flush(timeout_s=0.01)
    sink.may_write.set()
    logger.flush()
    assert len(sink.events) == 1000


def test_who_flushes_or_closes_does_not_wait_until_the_thread_looks_again(monkeypatch, sink):
    monkeypatch.setattr("rl_record.loggers.logger.LULL_S", 1000)
    logger = Logger("run", sink)
    for step in range(3):
        logger.log_scalar("a", step)
        logger.flush(timeout_s=30)
        assert len(sink.events) == step + 1
    logger.log_scalar("a", 3)
    logger.close(timeout_s=30)
    assert (len(sink.events), sink.closed) == (4, 1)


def test_error_of_a_sink_is_raised_once_by_the_next_call(logger, sink):
    sink.fail = OSError("disk full")
    logger.log_scalar("a", 1)
    with pytest.raises(OSError, match="disk full"):
        logger.flush()
    sink.fail = None
    logger.log_scalar("a", 2)
    logger.flush()
    assert [event.values["a"] for event in sink.events] == [2]


def test_event_that_cannot_be_written_takes_no_other_with_it(logger, sink):
    sink.refused = Video
    sink.may_write.clear()
    logger.log_scalar("a", 1)
    logger.log_video("play", FRAMES)
    logger.log_scalar("a", 2)
    sink.may_write.set()
    with pytest.raises(ValueError, match="Video is refused"):
        logger.flush()
    assert [event.values["a"] for event in sink.events] == [1, 2]
    assert logger.stats()["written"] == 2


def test_settings_are_those_of_the_call(logger, sink):
    sink.may_write.clear()
    settings = {"sizes": [1]}
    logger.log_hparams(settings)
    settings["sizes"].append(2)
    sink.may_write.set()
    logger.flush()
    assert sink.events[0].values == {"sizes": [1]}


def test_logger_in_a_cycle_is_collected_in_its_own_thread():
    class Collecting(Kept):
        def write(self, events):
            super().write(events)
            gc.collect()

    sink = Collecting()
    logger = Logger("run", sink)
    logger.itself, held = logger, weakref.ref(logger)
    sink.may_write.clear()
    logger.log_scalar("a", 1)
    logger.log_scalar("a", 2)
    thread = writer_thread()
    del logger
    sink.may_write.set()
    thread.join(8.0)  # it would wait for itself for a minute
    assert not thread.is_alive()
    assert held() is None
    assert (len(sink.events), sink.closed) == (2, 1)


def test_closing_writes_what_is_left_and_refuses_more(sink):
    logger = Logger("run", sink)
    sink.may_write.clear()
    logger.log_scalar("a", 1)
    sink.may_write.set()
    logger.close()
    logger.close()
    assert (len(sink.events), sink.closed) == (1, 1)
    with pytest.raises(ValueError, match="closed"):
        logger.log_scalar("a", 2)


def test_threads_may_log_to_one_logger(sink):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            logger, start = Logger("run", sink), threading.Barrier(5)

            def log(logger=logger, start=start):
                start.wait()
                logger.log_scalar("a", 1)

            threads = [threading.Thread(target=log) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            logger.close(timeout_s=10.0)
    finally:
        sys.setswitchinterval(before)
    assert [event.step for event in sink.events] == [0, 1, 2, 3, 4] * 20
    assert sink.closed == 20
    assert "rl-record" not in {thread.name for thread in threading.enumerate()}


def test_closing_does_not_wait_for_ever(sink):
    logger = Logger("run", sink)
    sink.may_write.clear()
    logger.log_scalar("a", 1)
    with pytest.raises(TimeoutError, match="has not written"):
        logger.close(timeout_s=0.01)
    sink.may_write.set()
    writer_thread().join(10.0)
    assert (len(sink.events), sink.closed) == (1, 1)


def test_logger_that_nobody_holds_is_closed(sink):
    logger = Logger("run", sink)
    logger.log_scalar("a", 1)
    del logger
    assert (len(sink.events), sink.closed) == (1, 1)


def test_logger_of_another_process_is_refused(sink):
    logger = Logger("run", sink)
    pid = os.fork()
    if not pid:
        try:
            logger.log_scalar("a", 1)
        except RuntimeError as error:
            try:
                logger.flush(timeout_s=5.0)
            except RuntimeError as other:
                texts = f"{error}", f"{other}"
                os._exit(0 if all("belongs to process" in text for text in texts) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    logger.close()


def test_state_goes_on_at_its_step(sink, logger):
    logger.log_metrics({"a": 1}, step=10)
    state = copy.deepcopy(logger.state_dict())
    logger.log_metrics({"a": 1}, step=20)
    logger.load_state_dict(state)
    logger.log_metrics({"a": 2}, step=11)  # not backwards
    logger.flush()
    assert [event.step for event in sink.events] == [10, 20, 10, 11]
    assert isinstance(sink.events[1], Metrics)
    assert not sink.events[3].is_backwards


SCRIPT = """
import sys
from rl_record import JSONLLogger
logger = JSONLLogger("run", sys.argv[1])
for step in range(100):
    logger.log_scalar("a", step)
{end}
"""


@pytest.mark.parametrize("end", ["", "1 / 0"], ids=["ends", "raises"])
def test_script_that_ends_without_closing_loses_nothing(tmp_path, end):
    script = SCRIPT.format(end=end)
    subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, check=False)
    assert read_run(tmp_path / "run")["a"].steps.tolist() == list(range(100))


def test_killed_process_keeps_what_was_flushed(tmp_path):
    end = "logger.flush(); import os; os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end=end), tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    with JSONLLogger("run", tmp_path, resume=True) as logger:
        logger.log_scalar("a", 7, step=100)
    assert read_run(tmp_path / "run")["a"].steps.tolist() == list(range(101))


FRAMES = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "args", "error", "message"),
    [
        ("log_scalar", ("a", "high", 1), TypeError, "'a': expected a number, .* got str"),
        ("log_scalar", ("a", torch.ones(3), 1), TypeError, r"\[3\]; log_histogram takes many"),
        (
            "log_scalar",
            ("a", torch.ones((), dtype=torch.cfloat), 1),
            TypeError,
            "got torch.complex64",
        ),
        ("log_scalar", ("a", np.array(["b"]), 1), TypeError, "got str_"),
        ("log_scalar", ("a", 2**1024, 1), TypeError, "a whole number of 1025 bits"),
        ("log_video", ("../up", FRAMES), ValueError, "name: expected a name"),
        ("log_video", ("/root", FRAMES), ValueError, "name: expected a name"),
        ("log_scalar", ("a", 1, 1.5), TypeError, "step: expected a whole number, got 1.5"),
        ("log_histogram", ("a", torch.ones(0), 1), ValueError, "expected real numbers"),
        ("log_video", ("a", FRAMES.float(), 1), TypeError, "expected frames of uint8"),
        ("log_video", ("a", FRAMES[0], 1), ValueError, r"expected frames \[T, C, H, W\]"),
        ("log_video", ("a", FRAMES[:, :2], 1), ValueError, "1, 3 or 4 channels"),
        ("log_video", ("a", [FRAMES[0, 0]], 1), ValueError, r"expected frames \[T, C, H, W\]"),
        ("log_video", ("a", [FRAMES[0], 3], 1), ValueError, r"alike.* got 3 \(int\) as frame 1"),
        ("log_video", ("a", [FRAMES[0], FRAMES[0, :1]], 1), ValueError, "got a tensor .* frame 1"),
        ("log_video", ("a", "nowhere.mp4", 1), FileNotFoundError, "nowhere.mp4 is no file"),
        ("log_hparams", (5,), TypeError, "settings: expected a mapping"),
    ],
)
def test_wrong_entries_are_refused_where_they_are_logged(logger, name, args, error, message):
    with pytest.raises(error, match=message):
        getattr(logger, name)(*args)
