import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_record import Curve, JSONLLogger
from rl_record.plot import band, grouped, main, moving_average, plot_runs


def curve(steps, values):
    steps = np.array(steps, np.int64)
    return Curve(steps, np.array(values, float), steps.astype(float))


def test_mean_of_seeds_at_steps_that_all_cover_by_hand():
    found = band([curve([0, 10, 20], [0, 10, 20]), curve([10, 30], [0, 20])])
    assert found.steps.tolist() == [10, 20]
    assert found.mean.tolist() == [5, 15]
    assert found.low.tolist() == [0, 10]
    assert found.high.tolist() == [10, 20]


def test_one_seed_is_its_own_interval():
    found = band([curve(range(500), range(500))])
    assert len(found.steps) == 200
    assert np.array_equal(found.low, found.high)
    assert (found.mean[0], found.mean[-1]) == (0, 499)


@given(st.lists(st.floats(-9, 9) | st.just(np.nan), min_size=1, max_size=9), st.integers(1, 12))
def test_moving_average_is_the_mean_of_the_window(values, width):
    found = moving_average(np.array(values), width)
    for i, mean in enumerate(found):
        window = [v for v in values[max(0, i - width + 1) : i + 1] if v == v]
        assert mean == pytest.approx(np.mean(window), abs=1e-9) if window else np.isnan(mean)


def test_curves_without_a_common_step_are_refused():
    with pytest.raises(ValueError, match="no step is covered by all 2 curves"):
        band([curve([0, 1], [0, 1]), curve([5, 6], [0, 1])])
    with pytest.raises(ValueError, match="at least one curve"):
        band([])


@pytest.fixture
def folder(tmp_path):
    for name in ("sac/0", "sac/1", "td3/0"):
        with JSONLLogger(name, tmp_path) as logger:
            for step in range(5):
                logger.log_metrics({"return": step, name[:3]: 1}, step)
    return tmp_path


def test_runs_in_one_folder_are_seeds_of_one_curve(folder):
    groups = grouped([folder / "sac" / "0", folder / "sac" / "1", folder / "td3" / "0"])
    assert {label: len(runs) for label, runs in groups.items()} == {"sac": 2, "0": 1}
    figure = plot_runs(groups)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["return", "sac", "td3"]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["sac (2)", "0 (1)"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [2, 1, 1]


def test_folders_of_one_name_are_not_averaged(folder):
    for name in ("old/sac/0", "old/sac/1"):
        with JSONLLogger(name, folder) as logger:
            logger.log_scalar("return", 1, 0)
    sac, old = folder / "sac", folder / "old" / "sac"
    apart = grouped([sac / "0", folder / "td3" / "0"])
    assert {label: len(runs) for label, runs in apart.items()} == {"sac/0": 1, "td3/0": 1}
    two = grouped([sac / "0", sac / "1", old / "0", old / "1" / "metrics.jsonl", sac / "1"])
    assert {label: len(runs) for label, runs in two.items()} == {
        f"{folder.name}/sac": 2,
        "old/sac": 2,
    }


def test_command_line_writes_a_picture(folder, capsys):
    out = folder / "curves.png"
    main([str(folder / "sac" / "0"), "--names", "return", "--out", str(out)])
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert capsys.readouterr().out == f"{out}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "holds no metrics.jsonl"), (["sac/0", "--names", "loss"], "is in no run")],
)
def test_command_line_says_what_is_wrong(folder, capsys, arguments, message):
    first, *rest = arguments
    with pytest.raises(SystemExit):
        main([str(folder / first), *rest])
    assert message in capsys.readouterr().err
