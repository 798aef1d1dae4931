import math
import threading

import pytest

from rl_datasets.stream.pace import Pace

HERE = threading.current_thread()  # alive, as a writer is


def test_rows_are_drawn_as_often_as_asked():
    pace = Pace(20, draws=2.0)
    pace.note_written(5)
    assert pace.take(8, HERE)
    with pytest.raises(TimeoutError, match=r"waited 0 s for 3 rows"):
        pace.take(3, HERE, timeout=0)  # 11 draws of 5 rows
    assert pace.take(2, HERE, timeout=0)


def test_the_first_draw_wants_a_tenth_of_the_ring():
    pace = Pace(100, draws=1.0)
    pace.note_written(9)
    with pytest.raises(TimeoutError):
        pace.take(1, HERE, timeout=0)
    pace.note_written(1)
    assert pace.take(10, HERE, timeout=0)


def test_rows_make_room_once_they_were_drawn():
    pace = Pace(10, draws=2.0)
    assert pace.await_room(10)
    pace.note_written(10)
    assert pace.take(6, HERE)  # half of these draws are of rows that may go
    assert pace.await_room(3)
    asked = threading.Thread(target=lambda: found.append(pace.await_room(4)), daemon=True)
    found: list[bool] = []
    asked.start()
    asked.join(0.05)
    assert asked.is_alive()
    pace.take(2, HERE)
    asked.join()
    assert found == [True]


def test_a_draw_that_both_sides_would_wait_for_is_refused():
    with pytest.raises(ValueError, match=r"9 rows at 0.5 draws per row need a ring of 36 rows"):
        Pace(30, draws=0.5).take(9, HERE)


def test_what_is_left_at_the_end_can_be_drawn():
    pace = Pace(100, draws=1.0)
    pace.note_written(5)
    pace.end()
    assert pace.take(3, HERE)
    assert not pace.take(3, HERE)
    assert pace.take(2, HERE)
    endless = Pace(100, draws=1.0)
    endless.end(math.inf)
    assert all(endless.take(50, HERE) for _ in range(10))


def test_an_error_of_the_writer_is_raised_by_every_draw():
    pace = Pace(100, draws=1.0)
    pace.note_written(50)
    pace.fail(ValueError("the file is damaged"))
    for _ in range(2):
        with pytest.raises(ValueError, match="the file is damaged"):
            pace.take(1, HERE)


def test_nobody_waits_for_a_writer_that_is_gone():
    gone = threading.Thread(target=int)
    gone.start()
    gone.join()
    with pytest.raises(RuntimeError, match="the thread that reads the stream is gone"):
        Pace(100, draws=1.0).take(1, gone)


def test_closing_ends_all_waiting():
    pace, found = Pace(10, draws=1.0), []
    pace.note_written(10)
    waiting = threading.Thread(target=lambda: found.append(pace.await_room(1)))
    waiting.start()
    pace.close()
    waiting.join()
    assert found == [False]
    with pytest.raises(RuntimeError, match="the stream was closed"):
        pace.take(1, HERE)
