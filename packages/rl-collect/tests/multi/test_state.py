"""Workers that are saved and loaded."""

import copy

import pytest

from rl_collect import MultiSyncCollector
from rl_envs.testing import CountingEnv

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def test_saved_workers_go_on_bit_for_bit(carrier, cart_poles, sampled):
    options = {"frames_per_batch": 24}
    with carrier.sync([cart_poles] * 2, sampled, **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        expected = [collector.next() for _ in range(2)]
    with carrier.sync([cart_poles] * 2, sampled, **options) as other:
        other.load_state_dict(state)
        for batch in expected:
            assert (other.next() == batch).all()
        assert other.frames == 72


def test_a_state_that_does_not_fit_a_worker_changes_none(cart_poles, sampled):
    options = {"frames_per_batch": 24, **FORK}
    with MultiSyncCollector([cart_poles] * 2, sampled, **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        other = copy.deepcopy(state)
        collector.next()
        other["workers"][1]["env"]["state"] = {}
        before = collector.state_dict()
        expected = collector.next()
        collector.load_state_dict(before)
        with pytest.raises(ValueError, match="the state is of another environment"):
            collector.load_state_dict(other)
        assert (collector.next() == expected).all()
        assert collector.frames == 72


def test_saved_workers_that_hold_unfinished_trajectories_go_on(carrier, cart_poles, sampled):
    options = {"frames_per_batch": 32, "trajs_per_batch": 2}
    with carrier.sync([cart_poles] * 2, sampled, **options) as collector:
        collector.set_seed(1)
        collector.next()
        state = collector.state_dict()
        expected = [collector.next() for _ in range(2)]
    with carrier.sync([cart_poles] * 2, sampled, **options) as other:
        other.load_state_dict(state)
        for batch in expected:
            assert (other.next() == batch).all()


def test_a_batch_that_is_only_half_there_is_not_left_out_of_a_state(counting):
    class FailsOnce(CountingEnv):
        def _step(self, tensordict):
            if not hasattr(self, "failed"):
                self.failed = True
                raise ZeroDivisionError("once")
            return super()._step(tensordict)

    makers = [counting(10**6), lambda: FailsOnce(10**6)]
    with MultiSyncCollector(makers, frames_per_batch=6, **FORK) as collector:
        with pytest.raises(ZeroDivisionError, match="once"):
            collector.next()
        with pytest.raises(RuntimeError, match="take it by next"):
            collector.state_dict()
        collector.next()
        assert collector.state_dict()["frames"] == 6
