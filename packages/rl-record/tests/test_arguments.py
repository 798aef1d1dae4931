"""Arguments of a wrong type are named where the call is made."""

import pytest
import torch

from rl_layout.testing import trajectories
from rl_record import JSONLLogger, Run, look, make_logger, read_run
from rl_record.plot import band, grouped, plot_runs


@pytest.fixture
def logger(tmp_path):
    with JSONLLogger("run", tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda log: log.log_scalar([1], 2), TypeError, "name: expected a name"),
        (lambda log: log.log_metrics((3,)), TypeError, "metrics: expected numbers by name"),
        (lambda log: log.log_histogram("w", "text"), TypeError, "'w': expected real numbers"),
        (lambda log: log.log_histogram(3, torch.ones(2)), TypeError, "name: expected a name"),
        (lambda log: log.log_video("v", {}), TypeError, "'v': expected frames of uint8"),
        (lambda log: log.log_video(3, "file"), TypeError, "name: expected a name"),
        (lambda log: log.log_video("v", "file", fps="30"), TypeError, "fps: expected a number"),
        (lambda log: log.load_state_dict(7), TypeError, "state: expected what the state_dict"),
        (lambda log: log.load_state_dict({"last_of": {}}), ValueError, r"lacks \['last_step'\]"),
        (lambda _: JSONLLogger("run", 7), TypeError, "log_dir: expected the folder of runs"),
        (lambda _: make_logger([], "run"), ValueError, "there is no logger"),
        (lambda _: read_run(7), TypeError, "path: expected the folder of a run"),
        (lambda _: Run("run", 7), TypeError, "lines: expected the lines"),
        (lambda _: Run("run", iter(()))[[]], KeyError, "was not logged"),
        (lambda _: band(torch.ones(3)), TypeError, "curves: expected a list of curves"),
        (lambda _: plot_runs({"sac": 3}), TypeError, "groups: expected lists of runs by label"),
        (lambda _: grouped(7), TypeError, "paths: expected a list of folders"),
        (lambda _: look(trajectories([2])).save(3), TypeError, "path: expected a file name"),
        (lambda _: look(trajectories([2])).save("/"), IsADirectoryError, "is a folder"),
        (lambda _: look(trajectories([2])).save("a/b/c"), FileNotFoundError, "is not there"),
    ],
    ids=range(20),
)
def test_an_argument_of_a_wrong_type_is_named(logger, call, error, message):
    with pytest.raises(error, match=message):
        call(logger)
