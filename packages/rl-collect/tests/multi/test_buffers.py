"""Buffers that workers fill."""

import pytest
import torch

from rl_collect import MultiAsyncCollector, MultiSyncCollector

FORK = {"mp_start_method": "fork", "timeout_s": 60.0}


def test_a_buffer_here_gets_every_batch(carrier, list_buffer, counting):
    buffer, options = list_buffer(), {"frames_per_batch": 6, "total_frames": 12}
    with carrier.sync([counting(4)] * 2, replay_buffer=buffer, **options) as workers:
        assert list(workers) == [None, None]
    assert [batch.shape for batch in buffer] == [(3,)] * 4


def test_a_buffer_gets_whole_trajectories_and_the_rest_at_the_end(carrier, list_buffer, counting):
    buffer = list_buffer()
    options = {"frames_per_batch": 8, "total_frames": 32, "trajs_per_batch": 1}
    makers = [counting(3), counting(100)]
    with carrier.sync(makers, replay_buffer=buffer, **options) as collector:
        list(collector)
        assert all(batch["next", "done"][-1].item() for batch in buffer)
        assert not any(batch["next", "truncated"].any() for batch in buffer)
    lengths = sorted(len(batch) for batch in buffer)
    assert sum(lengths) == 32
    assert lengths[-1] == 16
    assert max(buffer, key=len)["next", "truncated"][-1].item()


def test_the_rest_at_the_end_is_brought_to_the_storing_device_too(list_buffer, counting):
    buffer = list_buffer()
    options = {"frames_per_batch": 8, "trajs_per_batch": 1, "storing_device": "meta", **FORK}
    makers = [counting(3), counting(100)]
    with MultiSyncCollector(makers, replay_buffer=buffer, **options) as collector:
        collector.next()
        assert len(buffer) == 1
    assert len(buffer) == 3
    for batch in buffer:
        assert {leaf.device.type for leaf in batch.values(True, True)} == {"meta"}


def test_collecting_in_the_background_into_a_buffer(carrier, list_buffer, counting):
    buffer = list_buffer()
    collector = carrier.one_by_one(
        [counting(5)] * 2, frames_per_batch=4, total_frames=40, replay_buffer=buffer
    )
    collector.start()
    collector.wait()
    assert sum(len(batch) for batch in buffer) == 40
    collector.shutdown()


def test_a_buffer_with_columns_is_refused_where_workers_would_share_them(arranged_buffer, counting):
    def make(kind, count=2, **options):
        options = {"frames_per_batch": 8, "replay_buffer": arranged_buffer(), **options, **FORK}
        return kind([counting(9)] * count, **options)

    for kind, options in (
        (MultiAsyncCollector, {}),
        (MultiSyncCollector, {"cat_results": 0}),
        (MultiSyncCollector, {"trajs_per_batch": 2}),
    ):
        with pytest.raises(ValueError, match="ndim=2"):
            make(kind, **options)
    for kind, options in (
        (MultiAsyncCollector, {"count": 1}),
        (MultiAsyncCollector, {"set_truncated": True}),
    ):
        make(kind, **options).shutdown()
    with make(MultiSyncCollector) as collector:
        collector.next()
    assert [batch.shape for batch in collector.options.replay_buffer] == [(2, 4)]


def test_calls_during_background_collection_skip_no_batch(carrier, list_buffer, counting, policy):
    buffer, options = list_buffer(), {"frames_per_batch": 4, "total_frames": 160}
    with carrier.one_by_one(
        [counting(10**6)] * 2, policy(), replay_buffer=buffer, **options
    ) as collector:
        collector.start()
        while collector.is_running:
            assert collector.stats()["frames"] % 4 == 0
            collector.update_policy_weights_()
        collector.wait()
    rows = torch.cat(list(buffer))
    assert len(rows) == 160
    for number in rows["collector", "traj_ids"].unique():
        one = rows[rows["collector", "traj_ids"] == number]
        assert one["observation"].flatten().tolist() == list(range(len(one)))
