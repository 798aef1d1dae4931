"""Arguments of buffers in actors that are refused before a session of Ray begins."""

import functools
import sys

import pytest

from rl_replay import LazyTensorStorage, RayReplayBuffer

ROOM = functools.partial(LazyTensorStorage, 800)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"storage": 1}, TypeError, "storage must be a function, which the actor calls: got int"),
        ({"timeout_s": -1}, ValueError, "timeout_s must be seconds, 0 or more .* got -1"),
        ({"timeout_s": "1"}, TypeError, "timeout_s: expected a number, got '1'"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s: expected a number, got nan"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s must be .* finite: got inf"),
        (
            {"remote_config": [3]},
            TypeError,
            r"remote_config must be options .*'num_cpus': 1.*\[3\]",
        ),
        ({"remote_config": {"num_cpus": "2"}}, TypeError, "a number of CPU, as 1 or 0.5: got '2'"),
        ({"remote_config": {"num_gpus": -1}}, ValueError, "reserves 0 or more GPU: got -1"),
        (
            {"replay_buffer_cls": 3},
            TypeError,
            "replay_buffer_cls must be a class of buffers.*got 3",
        ),
        ({"replay_buffer_cls": dict}, TypeError, "replay_buffer_cls must be .*'dict'.*Pass Tensor"),
    ],
)
def test_wrong_arguments_are_named_without_a_session(given, error, message):
    with pytest.raises(error, match=message):
        RayReplayBuffer(**{"storage": ROOM, **given})
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
