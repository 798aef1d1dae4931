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


def test_rows_of_one_name_are_numbered_in_a_record(monkeypatch):
    monkeypatch.setattr(bench, "ROWS", [])
    for _ in range(3):
        bench.report("read", 1.0)
    assert [row["work"] for row in bench.ROWS] == ["read", "read #2", "read #3"]


def test_a_session_writes_what_was_reported(tmp_path, monkeypatch, capsys):
    path = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["rows.py", "--json", str(path)])
    with bench.session():
        bench.report("read", 2.0, 5.0)
        bench.report("write", 3.0)
    record = json.loads(path.read_text())
    assert record["rows"] == [
        {"work": "read", "unit": "us", "ours": 2.0, "torchrl": 5.0},
        {"work": "write", "unit": "us", "ours": 3.0},
    ]
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
    new = tmp_path / "new.json"
    new.write_text(json.dumps(record("2026-01-02", ours)))
    if fails:
        with pytest.raises(SystemExit, match="1 of 1 rows"):
            bench_compare.main(str(new), str(folder))
    else:
        bench_compare.main(str(new), str(folder))
