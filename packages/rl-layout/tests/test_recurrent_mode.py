from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
import torch

from rl_layout import recurrent_mode, set_recurrent_mode


def scaled(x):
    outside = 2 * x if recurrent_mode() else 3 * x
    with set_recurrent_mode("recurrent"):
        inside = 2 * x if recurrent_mode() else 3 * x
        with set_recurrent_mode("sequential"):
            nested = 2 * x if recurrent_mode() else 3 * x
    return torch.stack([outside, inside, nested])


@pytest.mark.parametrize(
    ("given", "mode"),
    [(True, True), ("recurrent", True), (False, False), ("sequential", False), (None, None)],
)
def test_modes_can_be_said_in_each_way(given, mode):
    with set_recurrent_mode(given):
        assert recurrent_mode() is mode
    assert recurrent_mode() is None


def test_modes_nest_and_leave_in_order_also_through_errors():
    same = set_recurrent_mode(True)
    with same, set_recurrent_mode(False):
        with pytest.raises(RuntimeError), same:
            raise RuntimeError
        assert recurrent_mode() is False
    assert recurrent_mode() is None


def test_a_decorated_function_runs_in_its_mode_each_time():
    @set_recurrent_mode(True)
    def double(x):
        """Twice."""
        return 2 * x, recurrent_mode()

    assert double(3) == double(3) == (6, True)
    assert double.__doc__ == "Twice."
    assert recurrent_mode() is None


def test_a_thread_does_not_see_the_mode_of_another():
    seen, entered, leave = [], threading.Event(), threading.Event()

    def other():
        with set_recurrent_mode(False):
            entered.set()
            assert leave.wait(10)
            seen.append(recurrent_mode())

    with set_recurrent_mode(True):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
        assert recurrent_mode() is True
        leave.set()
        thread.join(10)
    assert seen == [False]


def test_compiled_code_follows_modes_set_inside_and_outside():
    compiled = torch.compile(scaled, backend="eager", fullgraph=True)
    x = torch.tensor(1.0)
    assert compiled(x).tolist() == [3, 2, 3]
    with set_recurrent_mode(True):
        assert compiled(x).tolist() == [2, 2, 3]
    assert set_recurrent_mode(False)(compiled)(x).tolist() == [3, 2, 3]
    assert compiled(x).tolist() == scaled(x).tolist()


def test_a_decorated_function_compiles_whole():
    @set_recurrent_mode(True)
    def double(x):
        return 2 * x if recurrent_mode() else 3 * x

    assert torch.compile(double, backend="eager", fullgraph=True)(torch.tensor(1.0)) == 2


def test_compiled_code_is_compiled_once_for_each_mode_however_deep():
    compiled = torch.compile(scaled, backend="eager", fullgraph=True)
    with ExitStack() as stack:
        for _ in range(12):  # more than dynamo compiles one function anew
            stack.enter_context(set_recurrent_mode(True))
            assert compiled(torch.tensor(1.0)).tolist() == [2, 2, 3]


def test_functions_that_run_after_their_call_are_refused():
    def steps():
        yield recurrent_mode()

    async def task():
        return recurrent_mode()

    for function in (steps, task):
        with pytest.raises(TypeError, match="use `with` inside"):
            set_recurrent_mode(True)(function)


def test_other_modes_are_refused():
    with pytest.raises(ValueError, match="'recurrent' or 'sequential': got 'scan'"):
        set_recurrent_mode("scan")
    with pytest.raises(TypeError, match="got int"):
        set_recurrent_mode(1)


def test_compiled_code_may_be_the_first_of_a_thread_to_set_the_mode():
    @torch.compile(backend="eager")
    def doubled(x):
        with set_recurrent_mode(True):
            return x * 2 if recurrent_mode() else x

    found = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(doubled(torch.ones(2)).tolist()))
        thread.start()
        thread.join()
    assert found == [[2.0, 2.0]] * 2
