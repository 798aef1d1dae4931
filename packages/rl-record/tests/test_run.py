import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_record import JSONLLogger, read_run
from rl_record.run import Run


def test_curves_are_sorted_by_step_and_keep_the_order_of_equal_ones():
    entries = [(3, {"a": 1}), (1, {"a": 2, "b": "nan"}), (3, {"a": 3})]
    run = Run("x", iter([{"step": s, "time": i, "metrics": m} for i, (s, m) in enumerate(entries)]))
    assert run["a"].steps.tolist() == [1, 3, 3]
    assert run["a"].values.tolist() == [2, 1, 3]
    assert run["a"].times.tolist() == [1, 0, 2]
    assert np.isnan(run["b"].values).all()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(width=32), st.integers(0, 20))))
def test_run_reads_back_what_was_logged(tmp_path_factory, entries):
    folder = tmp_path_factory.mktemp("runs")
    last = -1
    with JSONLLogger("run", folder) as logger:
        for name, value, more in entries:
            last += 1 + more
            logger.log_scalar(name, value, last)
        logger.log_scalar("end", 1, last + 1)
    run = read_run(folder / "run")
    for name in "ab":
        expected = [value for key, value, _ in entries if key == name]
        found = run[name].values if name in run else []
        np.testing.assert_array_equal(found, expected)


def test_settings_backwards_entries_and_videos_are_read(tmp_path):
    lines = [
        {"time": 0, "settings": {"lr": 1}},
        {"time": 0, "settings": {"seed": 2}},
        {"time": 0, "step": 4, "metrics": {"a": 1}, "backwards": True},
        {"time": 0, "step": 4, "video": {"name": "play", "file": "videos/play-4.png", "fps": 30}},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n[1]\n")
    run = read_run(tmp_path)
    assert run.settings == {"lr": 1, "seed": 2}
    assert (run.num_backwards, run.num_torn, run.videos[0]["step"]) == (1, 1, 4)
    assert run.name == tmp_path.name
    with pytest.raises(KeyError, match=r"'b' was not logged: there are \['a'\]"):
        run["b"]


@pytest.mark.parametrize(
    "line",
    [
        '{"metrics": {"a": 1}}',
        '{"step": 3, "time": 1, "metrics": {"b": 2, "a": "high"}}',
        '{"step": 3, "time": 1, "metrics": {"a": null}}',
        '{"step": "x", "time": 1, "metrics": {"a": 1}}',
        '{"time": 1, "rewind": null}',
        '{"time": 1, "video": 3}',
        '{"step": 1, "time": 1, "metrics": [1]}',
        "\0\0",
        "[" * 100_000,
    ],
)
def test_damaged_line_is_counted_and_read_past(tmp_path, line):
    good = '{"step": %d, "time": 0, "metrics": {"a": 1}}'
    (tmp_path / "metrics.jsonl").write_text("\n".join([good % 1, line, good % 2]) + "\n")
    run = read_run(tmp_path)
    assert (list(run), run["a"].steps.tolist(), run.num_torn) == (["a"], [1, 2], 1)


def test_run_of_this_folder_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert read_run(".").name == tmp_path.name
