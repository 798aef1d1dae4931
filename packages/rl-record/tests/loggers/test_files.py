import csv
import json
import os
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from rl_record import (
    CSVLogger,
    JSONLLogger,
    TensorboardLogger,
    make_logger,
    read_run,
)

KINDS = {"jsonl": JSONLLogger, "csv": CSVLogger, "tensorboard": TensorboardLogger}
NAN = float("nan")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("fps", [10, Fraction(25, 2), np.float32(10)])
def test_any_number_of_frames_a_second_is_written(tmp_path, fps):
    frames = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with JSONLLogger("a", tmp_path) as logger:
        logger.log_video("one", frames, 1, fps=fps)
        logger.log_video("other", list(frames), 1, fps=fps)
    told = [line["video"]["fps"] for line in lines(tmp_path / "a" / "metrics.jsonl")]
    assert told == [float(fps)] * 2


def test_lines_of_a_run_by_hand(tmp_path):
    with JSONLLogger("a/b", tmp_path) as logger:
        logger.log_hparams({"lr": 0.5, "sizes": (3, 4), "kind": torch.float32, "on": True})
        logger.log_metrics({"loss": 0.5, "none": NAN}, step=3)
        logger.log_histogram("w", torch.tensor([0.0, 1.0, 4.0, torch.inf]), 3, bins=2)
    settings, metrics, histogram = lines(tmp_path / "a" / "b" / "metrics.jsonl")
    assert settings["settings"] == {"lr": 0.5, "sizes": [3, 4], "kind": "torch.float32", "on": True}
    assert (metrics["step"], metrics["metrics"]) == (3, {"loss": 0.5, "none": "nan"})
    expected = {"name": "w", "counts": [2, 1], "edges": [0, 2, 4]}
    assert histogram["histogram"] == expected


def test_table_of_a_run_by_hand(tmp_path):
    with CSVLogger("run", tmp_path) as logger:
        logger.log_hparams({"lr": 0.5})
        logger.log_metrics({"loss": 0.5, "return": 7}, step=3)
        logger.log_histogram("w", torch.tensor([0.0, 1.0, 4.0]), 3, bins=2)
    found = [(row["step"], row["name"], row["value"]) for row in rows(tmp_path / "run/metrics.csv")]
    assert found == [("3", "loss", "0.5"), ("3", "return", "7")]
    bars = [tuple(row.values()) for row in rows(tmp_path / "run/histograms.csv")]
    assert bars == [("3", "w", "0.0", "2.0", "2"), ("3", "w", "2.0", "4.0", "1")]
    assert json.loads((tmp_path / "run/settings.json").read_text()) == {"lr": 0.5}


def test_tensorboard_reads_its_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorboardLogger("run", tmp_path) as logger:
        logger.log_metrics({"loss/critic": 0.5}, step=3)
        logger.log_metrics({"loss/critic": 0.25}, step=4)
        logger.log_histogram("w", torch.ones(5), 4)
        logger.log_hparams({"lr": 0.5})
        logger.log_video("play", torch.zeros(2, 1, 4, 4, dtype=torch.uint8), 4)
        logger.log_histogram("nothing finite", torch.tensor([NAN]), 4)
    found = EventAccumulator(str(tmp_path / "run")).Reload()
    scalars = [(event.step, event.value) for event in found.Scalars("loss/critic")]
    assert scalars == [(3, 0.5), (4, 0.25)]
    assert found.Tags()["histograms"] == ["w"]
    assert list((tmp_path / "run" / "videos").iterdir())


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_checkpoint_voids_what_came_after_it(tmp_path, kind):
    with make_logger(kind, "run", tmp_path) as logger:
        for step in (10, 20, 30):
            logger.log_metrics({"a": step}, step=step)
            logger.log_histogram("w", torch.ones(2), step, bins=1)
            if step == 20:
                state = logger.state_dict()
    with make_logger(kind, "run", tmp_path, resume=True) as logger:
        logger.load_state_dict(state)
        logger.log_metrics({"a": -25}, step=25)
    if kind == "jsonl":
        run = read_run(tmp_path / "run")
        assert run["a"].steps.tolist() == [10, 20, 25]
        assert [entry["step"] for entry in run.histograms] == [10, 20]
    else:
        steps = [row["step"] for row in rows(tmp_path / "run" / "metrics.csv")]
        assert steps == ["10", "20", "25"]
        assert len(rows(tmp_path / "run" / "histograms.csv")) == 2


def test_tensorboard_hides_what_came_after_a_checkpoint(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorboardLogger("run", tmp_path) as logger:
        logger.log_scalar("a", 1, 10)
        state = logger.state_dict()
        logger.log_scalar("a", 2, 20)
        logger.load_state_dict(state)
        logger.log_scalar("a", 3, 15)
    found = EventAccumulator(str(tmp_path / "run")).Reload().Scalars("a")
    assert [event.step for event in found] == [10, 15]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_older_run_is_never_mixed_in(tmp_path, kind):
    make_logger(kind, "run", tmp_path).log_scalar("a", 1, 1)
    with pytest.raises(FileExistsError, match=r"holds an older run.*resume=True"):
        make_logger(kind, "run", tmp_path)
    with make_logger(kind, "run", tmp_path, resume=True) as logger:
        logger.log_scalar("a", 2, 2)


def test_torn_line_is_counted_and_the_next_ones_are_read(tmp_path):
    with JSONLLogger("run", tmp_path) as logger:
        logger.log_scalar("a", 1, 1)
        logger.log_scalar("a", 2, 2)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with JSONLLogger("run", tmp_path, resume=True) as logger:
        logger.log_scalar("a", 3, 3)
    run = read_run(path)
    assert run["a"].steps.tolist() == [1, 3]
    assert run.num_torn == 1


def test_torn_row_of_a_table_is_dropped_and_damage_does_not_stop_a_checkpoint(tmp_path):
    with CSVLogger("run", tmp_path) as logger:
        logger.log_metrics({"ü": 1}, 1)
        state = logger.state_dict()
        logger.log_metrics({"ü": 0.12345}, 2)
    path = tmp_path / "run" / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-4])  # 0.12 would be a number
    with CSVLogger("run", tmp_path, resume=True) as logger:
        logger.log_metrics({"ü": 3}, 3)
    assert [(row["step"], row["name"], row["value"]) for row in rows(path)] == [
        ("1", "ü", "1"),
        ("3", "ü", "3"),
    ]
    path.write_bytes(path.read_bytes() + b"\0\0,1,a,2\n\n")
    with CSVLogger("run", tmp_path, resume=True) as logger:
        logger.load_state_dict(state)
    assert [row["step"] for row in rows(path)] == ["1"]


@pytest.mark.parametrize("size", [0, 10])
def test_table_that_was_killed_at_its_head_has_one(tmp_path, size):
    CSVLogger("run", tmp_path).close()
    path = tmp_path / "run" / "metrics.csv"
    path.write_bytes(path.read_bytes()[:size])
    with CSVLogger("run", tmp_path, resume=True) as logger:
        logger.log_metrics({"a": True}, 1)
    assert [(row["name"], row["value"]) for row in rows(path)] == [("a", "1")]


@pytest.mark.parametrize("name", ["a\rb", "a\r\nb", "\r", 'a\r",b'])
def test_table_keeps_returns_in_names(tmp_path, name):
    def found(file):
        with (tmp_path / "run" / file).open(newline="", encoding="utf-8") as table:
            return [(row["step"], row["name"]) for row in csv.DictReader(table)]

    with CSVLogger("run", tmp_path) as logger:
        logger.log_metrics({name: 0.5, "plain": 1}, 1)
        logger.log_histogram(name, torch.ones(2), 1, bins=1)
        state = logger.state_dict()
        logger.log_scalar("late", 2, 2)
    assert found("metrics.csv") == [("1", name), ("1", "plain"), ("2", "late")]
    with CSVLogger("run", tmp_path, resume=True) as logger:
        logger.load_state_dict(state)
    assert found("metrics.csv") == [("1", name), ("1", "plain")]
    assert found("histograms.csv") == [("1", name)]
    assert ",plain,1\n" in (tmp_path / "run" / "metrics.csv").read_text()


def test_settings_of_a_table_add_up(tmp_path):
    with CSVLogger("run", tmp_path) as logger:
        logger.log_hparams({"lr": 0.5, "seed": 1})
    with CSVLogger("run", tmp_path, resume=True) as logger:
        logger.log_hparams({"seed": 2})
    assert json.loads((tmp_path / "run" / "settings.json").read_text()) == {"lr": 0.5, "seed": 2}


def test_lines_of_two_processes_are_not_mixed(tmp_path):
    names = [f"{'x' * 50}{i}" for i in range(400)]  # lines longer than buffers are
    with JSONLLogger("run", tmp_path) as logger:
        pid = os.fork()
        if not pid:
            with JSONLLogger("run", tmp_path, resume=True) as other:
                for step in range(60):
                    other.log_metrics(dict.fromkeys(names, 1.0), step)
            os._exit(0)
        for step in range(60):
            logger.log_metrics(dict.fromkeys(names, 2.0), step)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run = read_run(tmp_path / "run")
    assert run.num_torn == 0
    assert sorted(run[names[0]].values.tolist()) == [1.0] * 60 + [2.0] * 60


@pytest.mark.parametrize("name", ["", "../up", "/root", "a/../../b"])
def test_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="exp_name: expected a name"):
        JSONLLogger(name, tmp_path)


def test_unknown_logger_names_the_extras():
    with pytest.raises(ValueError, match=r"no logger 'tensorbord'.*rl-record\[tensorboard\]"):
        make_logger("tensorbord", "run")


@pytest.mark.parametrize("kind", ["wandb", "trackio", "tensorboard"])
def test_client_that_is_not_installed_is_named(tmp_path, monkeypatch, kind):
    for module in (kind, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'rl-record\[{kind}\]'"):
        make_logger(kind, "run", tmp_path)
