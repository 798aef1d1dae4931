"""Wrong arguments are refused: what was expected, and what came."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from rl_collect import Collector, Episodes, MultiCollector, TrajectoryIds, WholeTrajectories
from rl_envs.testing import CountingEnv


class Buffer(list):
    def extend(self, batch):
        self.append(batch)


def collector(**options):
    return Collector(CountingEnv(), **{"frames_per_batch": 4} | options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: collector(total_frames=0), ValueError, "total_frames is too small"),
        (lambda: collector(set_truncated=np.zeros(2)), TypeError, "set_truncated must be True or"),
        (lambda: collector(init_random_frames=[1]), TypeError, "init_random_frames must be an int"),
        (lambda: collector(exploration_type="mode"), TypeError, "exploration_type must be"),
        (lambda: collector(producer="a"), TypeError, "producer must be a whole number: got 'a'"),
        (lambda: collector().wait("a"), TypeError, "timeout_s must be a number of seconds: got"),
        (lambda: collector().load_state_dict(()), TypeError, "of Collector returned, got"),
        (
            lambda: collector().load_state_dict({"env": 1}),
            KeyError,
            "'batches', 'policy', 'random'",
        ),
        (lambda: collector().set_seed(0, np.zeros(2)), TypeError, "static_seed must be True or"),
        (
            lambda: MultiCollector([CountingEnv], frames_per_batch="a"),
            TypeError,
            "frames_per_batch must be an integer: got 'a'",
        ),
        (lambda: TrajectoryIds(None), TypeError, "batch_size must be a tuple of sizes"),
        (lambda: TrajectoryIds(()).mark(3), TypeError, "over must be bool"),
        (lambda: TrajectoryIds((2,)).cut(np.ones(3, bool)), ValueError, r"must have shape \(2,\)"),
        (lambda: TrajectoryIds(()).load_state_dict({}), KeyError, "lacks"),
        (lambda: Episodes("a"), TypeError, r"sizes, as \(2,\) or \(\): got 'a'"),
        (
            lambda: Episodes(()).add(np.ones(2), np.zeros(3, bool)),
            ValueError,
            r"begin with the shape of over, \(3,\): got \(2,\)",
        ),
        (lambda: Episodes(()).add("a", np.zeros(3, bool)), TypeError, "reward must be numbers"),
        (
            lambda: Episodes((3,)).load_state_dict(Episodes((2,)).state_dict()),
            ValueError,
            "of 2 environments: expected 3",
        ),
        (lambda: WholeTrajectories(0), ValueError, "num_envs is too small"),
        (lambda: WholeTrajectories(1).take(3), TypeError, r"expected a batch \[\*B, T\]: got 3"),
        (lambda: WholeTrajectories(2).cut(torch.ones(2)), TypeError, "rows must be bool"),
        (lambda: WholeTrajectories(2).load_state_dict([]), TypeError, "WholeTrajectories returned"),
    ],
)
def test_wrong_arguments_are_refused_with_their_names(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_numbers_of_numpy_are_taken_as_those_of_python():
    made = collector(producer=np.int64(3), shutdown_timeout_s=np.float32(5))
    assert (made.next()["collector", "traj_ids"] >> 32).tolist() == [3] * 4
    made.shutdown(np.int64(2))
    with pytest.raises(TypeError, match="producer must be a whole number: got True"):
        TrajectoryIds((), producer=True)


def test_a_background_is_awaited_for_any_real_number_of_seconds():
    made = collector(total_frames=8, replay_buffer=Buffer())
    made.start(timeout_s=Fraction(60))
    made.wait(np.float32(60))
    assert made.frames == 8


def test_flags_may_be_arrays_or_tensors():
    over = torch.tensor([False, True])
    assert TrajectoryIds((), producer=0).mark(over).steps.tolist() == [0, 1]
    episodes = Episodes(())
    episodes.add(torch.ones(2, 1), over)
    assert episodes.mean_return == 2
