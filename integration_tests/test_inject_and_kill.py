"""A few interrupts and kills of the faults session, at places drawn by a seed."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import gc

import pytest

from faults import inject, inject_dumps, inject_maps, kill, written_rows


@pytest.fixture(name="garbage")
def garbage_fixture():
    """Collect what a test leaves before the next one, to which it would be a warning."""
    yield
    gc.collect()


def interrupted_files(test):
    """Ignore warnings of files whose `open` was interrupted: garbage collection closes them."""
    test = pytest.mark.usefixtures("garbage")(test)
    for warning in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
        test = pytest.mark.filterwarnings(f"ignore::{warning}")(test)
    return test


@interrupted_files
def test_an_exception_at_any_line_of_a_write_leaves_whole_rows_alone(capsys):
    assert inject.sweep(None, seed=5, most=5, few=9) == 0, capsys.readouterr().out


@interrupted_files
def test_an_interrupt_of_what_recovers_from_a_failed_write_leaves_whole_rows_alone(capsys):
    assert inject.sweep_twice(seed=6, most=3, few=8) == 0, capsys.readouterr().out


@interrupted_files
def test_rows_that_are_held_back_stand_as_before_an_interrupted_call_or_as_after_it(capsys):
    assert inject.sweep(None, seed=3, only="n-step", most=6) == 0, capsys.readouterr().out


@interrupted_files
def test_an_exception_at_any_line_of_a_dump_leaves_the_former_dump_or_the_new_one(capsys):
    listed, judge = inject_dumps.scenarios, inject_dumps.trial
    failed = inject.sweep(None, seed=7, most=3, few=8, listed=listed, judge=judge)
    assert failed == 0, capsys.readouterr().out


@interrupted_files
def test_an_exception_at_any_line_of_a_call_leaves_maps_and_forests_whole(capsys):
    listed, judge = inject_maps.scenarios, inject_maps.trial
    failed = inject.sweep(None, seed=4, most=2, listed=listed, judge=judge)
    assert failed == 0, capsys.readouterr().out


def test_killed_writers_and_dumps_leave_whole_rows_alone(capsys):
    assert kill.sweep(30.0, seed=5, most=8, workers=False) == 0, capsys.readouterr().out


def test_a_row_that_nobody_wrote_is_seen():
    """The check itself: rows of which one leaf belongs to another row."""
    torn = written_rows.rows(10, 4)
    assert written_rows.problems(torn) == []
    torn["next", "reward"][2] = 1.0
    assert written_rows.problems(torn) == ["row 12: ('next', 'reward') is another row's"]
