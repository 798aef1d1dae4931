import json

import bench_table
import pytest


@pytest.mark.parametrize("name", bench_table.PAGES)
def test_the_table_of_a_page_is_the_one_written_from_the_records(name):
    page = (bench_table.ROOT / name).read_text(encoding="utf-8")
    assert page == bench_table.updated(page, bench_table.records()), (
        "run `python -m tools.bench_table`"
    )


def test_every_row_that_the_pages_show_is_in_a_record():
    titles = [row.title for row in bench_table.figures(bench_table.records())]
    assert titles == [shown.title for shown in bench_table.SHOWN]


def record(date, ours, machine="m", **more):
    row = {"benchmark": "rl-replay/replay", "work": "add one row", "unit": "us", "ours": ours}
    return {"date": date, "machine": machine, "rows": [{**row, "torchrl": 6000.0}], **more}


def test_the_latest_record_of_the_newest_machine_counts(tmp_path):
    found = [record("2026-01-02", 2.0), record("2026-01-01", 3.0), record("2026-01-01", 4.0, "n")]
    for number, one in enumerate(found):
        (tmp_path / f"{number}.json").write_text(json.dumps(one))
    assert bench_table.records(tmp_path) == [found[1], found[0]]
    assert [row.ours for row in bench_table.figures(bench_table.records(tmp_path))] == [2.0]


def test_a_record_of_shortened_measurements_is_not_shown(tmp_path):
    full = record("2026-01-01", 2.0)
    (tmp_path / "a.json").write_text(json.dumps(full))
    (tmp_path / "b.json").write_text(json.dumps(record("2026-01-02", 3.0, turns=1)))
    assert bench_table.records(tmp_path) == [full]


@pytest.mark.parametrize(
    ("ours", "line"),
    [
        (12.0, "| Add one row | 6,000 us | 12 us | 500 |"),
        (2e3, "| Add one row | 6 ms | 2 ms | 3 |"),
    ],
)
def test_times_are_in_the_unit_of_ours(ours, line):
    assert bench_table.table([record("2026-01-01", ours)]).splitlines()[-1] == line
