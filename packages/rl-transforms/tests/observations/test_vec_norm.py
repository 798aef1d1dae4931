from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import signal

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_specs import Bounded, Composite
from rl_transforms import Compose, VecNorm


def seen(*values):
    return TensorDict({"observation": torch.tensor(values).unsqueeze(-1)}, [len(values)])


def test_observation_is_counted_once_and_scaled_by_statistics_including_it():
    norm = VecNorm(decay=1)
    root = norm.reset(seen(1.0, 3.0))
    assert root["observation"].flatten().tolist() == [-1, 1]
    after = norm.step(root, seen(5.0, 7.0))
    rows = np.array([1.0, 3, 5, 7])
    wanted = (torch.tensor([5.0, 7.0]) - rows.mean()) / rows.std()
    torch.testing.assert_close(after["observation"].flatten(), wanted.float())
    assert norm.statistics()[0] == 4
    raw = seen(11.0, 7.0)  # the first row was reset, the other one is scaled already
    raw["observation"][1] = after["observation"][1]
    again = norm.reset(raw, torch.tensor([True, False]))
    assert norm.statistics()[0] == 5
    assert norm.statistics()[1].item() == pytest.approx(27 / 5)
    assert again["observation"][1].equal(after["observation"][1])
    assert again["observation"][0].item() == pytest.approx((11 - 5.4) / np.std([1, 3, 5, 7, 11]))


def test_statistics_of_many_steps_equal_those_of_all_rows():
    rows = torch.randn(40, 3, 2, dtype=torch.float64) * 5 + 100
    norm = VecNorm(["a"], ["b"], decay=1)
    root = norm.reset(TensorDict({"a": rows[0]}, [3]))
    for row in rows[1:]:
        root = norm.step(root, TensorDict({"a": row}, [3]))
    count, mean, std = norm.statistics("a")
    assert count == 120
    torch.testing.assert_close(mean, rows.flatten(0, 1).mean(0))
    torch.testing.assert_close(std, rows.flatten(0, 1).std(0, correction=0))
    assert root["b"].dtype == torch.float64
    assert root["a"] is not root["b"]


def test_decay_reduces_the_weight_of_earlier_observations():
    norm = VecNorm(decay=0.5)
    norm.reset(seen(0.0, 0.0))
    norm.step(seen(0.0), seen(4.0))
    count, mean, _ = norm.statistics()
    assert (count, mean.item()) == (2, 2)


def test_forward_scales_rows_without_counting_them():
    norm, rows = VecNorm(), trajectories([4, 3])
    norm.update(rows)
    before = norm.statistics()[0]
    scaled = norm(rows)
    assert norm.statistics()[0] == before
    torch.testing.assert_close(scaled["observation"].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    _, mean, std = norm.statistics()
    wanted = (rows["next", "observation"] - mean.float()) / std.float()
    assert torch.equal(scaled["next", "observation"], wanted)


def test_update_counts_real_rows_only():
    rows = TensorDict({"observation": torch.randn(5, 7, 2)}, [5, 7])
    rows["collector", "mask"] = torch.rand(5, 7) < 0.6
    real = rows["observation"][rows["collector", "mask"]].double()
    rows["observation"][~rows["collector", "mask"]] = torch.nan
    norm = VecNorm()
    norm.update(rows)
    assert norm.statistics()[0] == len(real)
    torch.testing.assert_close(norm.statistics()[1], real.mean(0))


def test_frozen_statistics_do_not_change():
    norm = VecNorm().freeze()
    with pytest.raises(RuntimeError, match="no statistics of 'observation' yet"):
        norm.reset(seen(1.0))
    norm.update(seen(1.0, 3.0))
    norm.step(seen(1.0), norm.reset(seen(9.0)))
    assert norm.statistics()[0] == 2
    norm.freeze(False).reset(seen(9.0))
    assert norm.statistics()[0] == pytest.approx(3, abs=1e-3)


def test_fixed_observation_norm_gives_the_same_bits():
    rows = TensorDict({"a": torch.randn(9, 2) * 3 + 50, "b": torch.ones(9, 3)}, [9])
    one, two = VecNorm(["a"]), VecNorm(["a", "b"], ["a", ("scaled", "b")])
    for norm in (one, two):
        norm.update(rows)
        made = norm.to_observation_norm()
        assert (made(rows) == norm(rows)).all()
    assert isinstance(two.to_observation_norm(), Compose)
    assert one.to_observation_norm(torch.float64).loc.dtype == torch.float64


def test_statistics_are_saved_without_code_and_loaded():
    norm, rows = VecNorm(["observation", "action"]), trajectories([30])
    norm.update(rows)
    file = io.BytesIO()
    torch.save(norm.state_dict(), file)
    file.seek(0)
    other = VecNorm(["observation", "action"])
    other.load_state_dict(torch.load(file, weights_only=True))
    assert (norm(rows) == other(rows)).all()
    other.load_state_dict(VecNorm(["observation", "action"]).state_dict())
    with pytest.raises(RuntimeError, match="no statistics"):
        other(rows)
    with pytest.raises(ValueError, match=r"2 leaves.*\['observation'\]"):
        VecNorm().load_state_dict(norm.state_dict())


def test_integers_are_scaled_to_floats_and_specs_have_no_bounds():
    norm = VecNorm(["pixels", "half"])
    leaves = {
        "pixels": Bounded(0, 255, (7, 4), dtype=torch.uint8),
        "half": Bounded(0, 1, (7, 2), dtype=torch.float16),
    }
    spec = norm.transform_observation_spec(Composite(leaves, shape=(7,)))
    root = norm.reset(Composite(leaves, shape=(7,)).rand())
    for name, dtype in (("pixels", torch.float32), ("half", torch.float16)):
        assert spec[name].dtype == root[name].dtype == dtype
        assert spec[name].is_in(root[name])


def test_copies_share_statistics_on_request_only():
    norm = VecNorm(decay=1)
    norm.update(seen(1.0, 3.0))
    alone = copy.deepcopy(norm)
    norm.share_memory(lanes=4)
    others = [copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))]
    for one in (alone, *others):
        one.update(seen(5.0))
    assert alone.statistics()[0] == 3
    for one in (norm, *others):
        assert one.statistics()[0] == 4
        assert one.statistics()[1].item() == 3.5


def test_shared_statistics_cover_the_rows_of_all_copies():
    norm = VecNorm(decay=1).share_memory(lanes=8)
    rows = torch.randn(5, 11, 3, dtype=torch.float64) * 4 + 7
    for part in rows:
        copy.deepcopy(norm).update(TensorDict({"observation": part}, [11]))
    count, mean, std = norm.statistics()
    assert count == 55
    torch.testing.assert_close(mean, rows.flatten(0, 1).mean(0))
    torch.testing.assert_close(std, rows.flatten(0, 1).std(0, correction=0))


def _count_and_die(norm):
    for _ in range(5):
        norm.update(seen(2.0, 4.0, 6.0))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 3), ("spawn", 1)])
def test_processes_read_and_update_shared_statistics(method, num_workers):
    context, norm = multiprocessing.get_context(method), VecNorm(decay=1).share_memory(lanes=4)
    norm.update(seen(2.0, 4.0, 6.0))  # a child must not take this part for its own
    rows = TensorDict({"observation": torch.tensor([[2.0], [4.0], [6.0]]).repeat(50, 1)}, [150])
    workers = [context.Process(target=norm.update, args=(rows,)) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    count, mean, std = norm.statistics()
    assert (count, mean.item()) == (3 + 150 * num_workers, 4)
    assert std.item() == pytest.approx((8 / 3) ** 0.5)


def test_killed_process_leaves_its_counts_and_frees_its_lane():
    context, norm = multiprocessing.get_context("fork"), VecNorm(decay=1).share_memory(lanes=1)
    for turn in range(3):
        worker = context.Process(target=_count_and_die, args=(norm,))
        worker.start()
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL
        assert norm.statistics()[0] == 15 * (turn + 1)
    norm.update(seen(4.0))
    assert norm.statistics()[0] == 46


def test_interrupted_write_loses_no_published_statistics():
    norm = VecNorm(decay=1).share_memory(lanes=2)
    norm.update(seen(1.0, 3.0))
    # private: only the writer's own lanes give the row that its next write would have used
    lanes = norm._stores[0]._lanes
    row = lanes.claim().reserve(1).rows  # and no publish
    lanes.slab.columns()["moments"][row] = np.nan
    assert norm.statistics()[0] == 2
    assert copy.deepcopy(norm).statistics()[1].item() == 2


def test_sharing_copy_saves_and_restores_its_own_part():
    norm = VecNorm(decay=1).share_memory(lanes=4)
    norm.update(seen(1.0, 3.0))
    other = copy.deepcopy(norm)
    other.update(seen(5.0))
    saved = [copy.deepcopy(one.state_dict()) for one in (norm, other)]
    alone = VecNorm()
    alone.load_state_dict(saved[0])
    assert alone.statistics()[0] == 3
    for one, state in zip((norm, other), saved, strict=True):
        one.update(seen(100.0))
        one.load_state_dict(state)
    assert (norm.statistics()[0], norm.statistics()[1].item()) == (3, 3)
    with pytest.raises(RuntimeError, match=r"not shared: load it, then share_memory"):
        norm.load_state_dict(alone.state_dict())


def test_exhausted_lanes_are_refused():
    norm = VecNorm().share_memory(lanes=1)
    norm.update(seen(1.0))
    with pytest.raises(RuntimeError, match="all 1 lanes are held"):
        copy.deepcopy(norm).update(seen(1.0))


def test_missing_statistics_and_invalid_settings_are_refused():
    norm = VecNorm()
    with pytest.raises(RuntimeError, match="no statistics of 'observation' yet: step"):
        norm(trajectories([3]))
    for decay in (0, 1.5):
        with pytest.raises(ValueError, match="decay: expected a share"):
            VecNorm(decay=decay)
    with pytest.raises(ValueError, match="eps: expected a number above 0"):
        VecNorm(eps=0)
    with pytest.raises(KeyError, match="'a' is missing"):
        VecNorm(["a"]).update(seen(1.0))
    with pytest.raises(KeyError, match="'a' is missing"):
        VecNorm(["a"]).step(seen(1.0), seen(1.0))
    with pytest.raises(KeyError, match="'a' is missing"):
        VecNorm(["a"])(seen(1.0))
    norm.update(seen(1.0, 2.0))
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'observation' holds NaN or infinite"):
            norm.step(seen(1.0), seen(odd))
    assert norm.statistics()[0] == 2
    with pytest.raises(ValueError, match=r"leaves of shape \[1\], got \[2\]"):
        norm.reset(trajectories([3]))
    with pytest.raises(KeyError, match="'a' is not scaled here"):
        norm.statistics("a")
    with pytest.raises(ValueError, match="call step at every step"):
        norm.rows(trajectories([3]))


def test_update_of_a_non_tensordict_is_refused():
    with pytest.raises(TypeError, match=r"batch: expected a tensordict, got \[\] \(list\)"):
        VecNorm(["observation"]).update([])
