import itertools
import json
import sys

import bench
import bench_compare
import pytest


def test_medians_are_of_calls_in_turns_after_the_warm_up():
    order, ticks = [], itertools.count()
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    found = bench.medians_us(2, *calls, clock=lambda: float(next(ticks)), warm_up=1)
    assert order == ["a", "b"] * 3
    assert found == [1e6, 1e6]


def test_a_burst_begins_with_a_call_that_is_not_timed():
    called, ticks = [], itertools.count()
    bench.medians_us(
        2, lambda: called.append(1), clock=lambda: float(next(ticks)), warm_up=0, burst=3
    )
    assert len(called) == 2 * 4
    assert next(ticks) == 2 * 3 * 2


def test_what_precedes_a_call_is_not_timed():
    now, order = [0.0], []

    def prepare():
        now[0] += 100.0
        order.append("prepare")

    def call():
        now[0] += 1.0
        order.append("call")

    found = bench.medians_us(2, call, clock=lambda: now[0], warm_up=0, burst=2, before=[prepare])
    assert order == ["prepare", "call"] * 6
    assert found == [1e6]


def test_a_duration_is_divided_by_the_units_that_the_call_returns():
    ticks = itertools.count()
    calls = (lambda: 4, lambda: 5)
    found = bench.medians_us(3, *calls, clock=lambda: float(next(ticks)), per_unit=True)
    assert found == [1e6 / 4, 1e6 / 5]


def test_medians_of_measures_are_taken_figure_by_figure():
    first, second = iter([(9, 9), (1, 30), (3, 10), (2, 20)]), itertools.repeat((7,))
    found = bench.medians(3, lambda: next(first), lambda: next(second), warm_up=1)
    assert found == [[2, 20], [7]]


def test_a_table_is_one_row_with_a_figure_for_each_peer(monkeypatch, capsys):
    monkeypatch.setattr(bench, "ROWS", [])
    bench.table("read", {"torchrl": 6.0, "mine": 2.0}, "mine", {"torchrl": "goal 2"})
    assert bench.ROWS == [{"work": "read", "unit": "us", "ours": 2.0, "torchrl": 6.0}]
    assert "3.00 x   goal 2" in capsys.readouterr().out


def test_a_limit_shortens_every_measurement_and_is_in_the_record(tmp_path, monkeypatch):
    path, called = tmp_path / "record.json", []
    monkeypatch.setattr(bench, "LIMIT", [])
    monkeypatch.setattr(sys, "argv", ["rows.py", "--turns", "2", "--json", str(path)])
    with bench.session():
        bench.medians_us(50, lambda: called.append(1), warm_up=9)
        assert bench.turns(1) == 1
    assert len(called) == 2 + 2
    assert json.loads(path.read_text())["turns"] == 2


def test_rows_of_one_name_are_numbered_in_a_record(monkeypatch):
    monkeypatch.setattr(bench, "ROWS", [])
    for _ in range(3):
        bench.report("read", 1.0)
    assert [row["work"] for row in bench.ROWS] == ["read", "read #2", "read #3"]


def test_a_session_writes_what_was_reported(tmp_path, monkeypatch, capsys):
    path = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["packages/rl-x/benchmarks/rows.py", "--json", str(path)])
    with bench.session():
        bench.report("read", 2.0, 5.0)
        bench.report("write", 3.0)
    record = json.loads(path.read_text())
    assert record["rows"] == [
        {"benchmark": "rl-x/rows", "work": "read", "unit": "us", "ours": 2.0, "torchrl": 5.0},
        {"benchmark": "rl-x/rows", "work": "write", "unit": "us", "ours": 3.0},
    ]
    assert "turns" not in record
    assert record["machine"] == bench.machine()
    assert record["versions"]["python"] == bench.versions()["python"]
    assert "2.50 x" in capsys.readouterr().out


def record(date, ours, machine="m"):
    return {"date": date, "machine": machine, "rows": [{"work": "read", "ours": ours}]}


def test_the_last_record_of_the_same_kind_of_machine_is_the_one_compared_with(tmp_path):
    older = [record("2026-01-02", 4.0), record("2026-01-01", 1.0), record("2026-01-03", 9.0, "n")]
    for number, old in enumerate(older):
        (tmp_path / f"{number}.json").write_text(json.dumps(old))
    new = record("2026-01-04", 6.0)
    assert bench_compare.last_record(tmp_path, new) == older[0]
    assert bench_compare.changes(new, older[0]) == {"read": 1.5}


@pytest.mark.parametrize(("ours", "fails"), [(1.2, False), (1.3, True)])
def test_more_than_a_quarter_longer_fails(tmp_path, ours, fails):
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "old.json").write_text(json.dumps(record("2026-01-01", 1.0)))
    new = record("2026-01-02", ours)
    if fails:
        with pytest.raises(SystemExit, match="1 of 1 rows"):
            bench_compare.compare(new, folder)
    else:
        bench_compare.compare(new, folder)
