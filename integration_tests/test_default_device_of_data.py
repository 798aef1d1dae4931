"""Buffers, layouts, datasets, maps and searches give the same under any default device of torch.

Under the device "meta" a tensor that is made without a device has no data and cannot be read.
"""

# ruff: noqa: D102, D103 - the name of a test is its promise

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from default_device import assert_same_under_any_default
from rl_datasets import BaseDatasetExperienceReplay
from rl_datasets.testing import ListSource, toy_episodes
from rl_layout import (
    BatchRows,
    EndKind,
    Segments,
    check_layout,
    join_trajectories,
    split_trajectories,
)
from rl_layout.synthetic import environments, trajectories
from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    NestedStorageCheckpointer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorageCheckpointer,
)
from rl_tensordict import CPU
from rl_trees import (
    GumbelHalving,
    HashToInt,
    MCTSForest,
    MCTSTrees,
    RandomProjectionHash,
    SearchStep,
    SipHash,
    TensorDictMap,
)

LENGTHS = [5, 9, 1, 7, 3, 12, 2, 9]


def steps() -> TensorDict:
    """Rows of a collector, on the CPU."""
    batch = trajectories(LENGTHS)
    versions = torch.arange(len(batch), device=CPU) // 16
    return batch.set(("collector", "policy_version"), versions)


STORAGES = {
    "plain": lambda _: LazyTensorStorage(64),
    "lossless": lambda _: LazyTensorStorage(64, lossless=True),
    "in files": lambda path: LazyMemmapStorage(64, scratch_dir=path),
    "list": lambda _: ListStorage(64),
}


@pytest.mark.parametrize("name", STORAGES)
def test_rows_are_written_and_read(name, tmp_path_factory):
    batch = steps()

    def flow():
        storage = STORAGES[name](tmp_path_factory.mktemp("rows"))
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
        found = [buffer.extend(batch), buffer.extend(batch[:30])]
        for row in batch[:3]:
            buffer.add(row)
        found += [buffer.sample(), buffer[2:9], buffer[[4, 2]], buffer[np.array([7, 1])], buffer[3]]
        buffer[3] = batch[1]
        if name != "list":
            rows = buffer.sample()
            found += [buffer.update_rows(rows["collector", "row"], rows), buffer["action"]]
            buffer["action"] = np.zeros((64, 1), np.int64)
        return [*found, buffer[3], buffer.sample()]

    assert_same_under_any_default(flow)


def test_rows_are_shared():
    batch = steps()

    def flow():
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(512), shared=True, batch_size=8)
        found = [buffer.extend(batch), buffer.extend(batch[:30]), buffer.add(batch[0])]
        return [*found, buffer.sample(), buffer[4]]

    assert_same_under_any_default(flow)


def test_numbers_and_arrays_of_a_caller_are_stored():
    def flow():
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=3)
        buffer.extend({"observation": np.ones((4, 2)), "reward": np.arange(4.0)})
        buffer.add({"observation": np.zeros(2), "reward": 0.5})
        return [buffer[:], buffer.sample()]

    assert_same_under_any_default(flow)


SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "in order": lambda: SamplerWithoutReplacement(shuffle=False),
    "slices": lambda: SliceSampler(slice_len=4, strict_length=False),
    "slices by step": lambda: SliceSampler(slice_len=3, by="step"),
    "padded slices": lambda: SliceSampler(slice_len=4, pad_output=True),
    "slices without": lambda: SliceSamplerWithoutReplacement(slice_len=3, strict_length=False),
    "by priority": lambda: PrioritizedSampler(64, 0.7, 0.5),
    "slices by priority": lambda: PrioritizedSliceSampler(
        64, alpha=0.7, beta=0.5, slice_len=3, strict_length=False
    ),
    "fresh": lambda: StalenessAwareSampler(max_staleness=2),
}


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_are_drawn_and_states_loaded(name, seeded):
    batch = steps()

    def made():
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(64), sampler=SAMPLERS[name](), batch_size=12,
            generator=torch.Generator().manual_seed(2) if seeded else None,
        )  # fmt: skip
        if isinstance(buffer.sampler, StalenessAwareSampler):
            buffer.sampler.consumer_version = 3
        return buffer

    def flow():
        buffer = made()
        buffer.extend(batch)
        found = [buffer.sample() for _ in range(3)]
        if "priority" in name:
            found[-1]["td_error"] = found[-1]["next", "reward"].reshape(-1)
            buffer.update_tensordict_priority(found[-1])
            buffer.update_priority([3, 5], 0.5)
            buffer.update_priority(7, np.float64(2.5))
        other = made()
        other.load_state_dict(buffer.state_dict())
        return [*found, buffer.sample(), other[:], other.sample()]

    assert_same_under_any_default(flow)


def test_rows_are_drawn_once_from_a_buffer_that_consumes():
    batch = steps()

    def flow():
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(64), batch_size=6, consume_after_n_samples=1
        )
        buffer.extend(batch)
        found = buffer.sample()
        buffer.load_state_dict(buffer.state_dict())
        return [found, buffer.sample()]

    assert_same_under_any_default(flow)


def test_the_best_rows_are_kept_and_ensembles_drawn_from():
    batch = steps()
    batch["rank"] = torch.arange(len(batch), device=CPU) % 17

    def flow():
        best = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), writer=TensorDictMaxValueWriter("rank"), batch_size=4
        )
        index = best.extend(batch)
        members = [TensorDictReplayBuffer(storage=LazyTensorStorage(64)) for _ in range(2)]
        for member in members:
            member.extend(batch)
        some = ReplayBufferEnsemble(*members, batch_size=8, num_buffer_sampled=1, p=[0.3, 0.7])
        every = ReplayBufferEnsemble(*members, batch_size=8, sample_from_all=True)
        return [index, best[:], best.sample(), some.sample(), every.sample()]

    assert_same_under_any_default(flow)


CHECKPOINTERS = {
    "own form": None,
    "torch": TensorStorageCheckpointer,
    "flat": FlatStorageCheckpointer,
    "nested": NestedStorageCheckpointer,
    "h5": H5StorageCheckpointer,
}


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTERS)
def test_dumps_are_loaded(name, lossless, tmp_path_factory):
    batch = steps()

    def made():
        storage = LazyTensorStorage(64, lossless=lossless)
        if CHECKPOINTERS[name] is not None:
            storage.checkpointer = CHECKPOINTERS[name]()
        return TensorDictReplayBuffer(
            storage=storage, batch_size=8, generator=torch.Generator().manual_seed(1)
        )

    def flow():
        folder = tmp_path_factory.mktemp("dump") / "dump"
        buffer, other = made(), made()
        buffer.extend(batch)
        buffer.extend(batch[:20])
        buffer.dumps(folder)
        other.loads(folder)
        return [other[:], other.sample()]

    assert_same_under_any_default(flow)


@pytest.mark.parametrize("ids", [False, True], ids=["without ids", "with ids"])
def test_layout_is_found_from_markers(ids):
    flat, block = steps(), environments(3, 8, [4, 3, 6], [EndKind.TERMINATED, EndKind.TRUNCATED])
    known = () if ids else (("collector", "traj_ids"), ("collector", "traj_step"))
    flat, block = flat.exclude(*known), block.exclude(*known)

    def flow():
        found = []
        for batch in (flat, block):
            segments = Segments.of(batch)
            values = batch["observation"]
            assert check_layout(batch).ok
            found += [segments.starts, segments.lengths, segments.kinds, segments.cu_seqlens]
            found += [segments.rows, segments.ids, segments.positions, segments.pad_mask]
            padded = segments.pad(values)
            found += [padded, segments.unpad(padded), segments.sum(values), segments.mean(values)]
            found += [segments.unnest(segments.nest(values))]
            apart = split_trajectories(batch)
            found += [apart, join_trajectories(apart)]
            rows = BatchRows(batch)
            found += [*rows.after(rows.numbers, 1), *rows.before(rows.numbers, 1)]
        return found

    assert_same_under_any_default(flow)


def test_what_breaks_the_layout_is_found():
    batch = steps()
    batch["collector", "traj_step"][7] = 3
    batch["next", "observation"][9] += 1

    def flow():
        return [
            str(check_layout(batch)),
            trajectories(LENGTHS),
            environments(3, 8, [4, 3, 6], [EndKind.TERMINATED, EndKind.TRUNCATED]),
        ]

    assert_same_under_any_default(flow)


class Walks(BaseDatasetExperienceReplay):
    """Ten rows of two episodes."""

    family = "walks"

    @classmethod
    def known_ids(cls):
        return ["walks/short-v0"]

    def source(self, path):
        del path
        return ListSource(toy_episodes((6, 4)))

    def fetch(self, folder):
        del folder


def test_datasets_are_converted_and_preprocessed(tmp_path_factory):
    def flow():
        root = tmp_path_factory.mktemp("datasets")
        data = Walks("walks/short-v0", root=root, verbose=False, batch_size=4, slice_len=2)
        found = [data[:], data.sample()]
        rows = data.preprocess(
            lambda one: one.set("twice", one["next", "reward"] * 2), dest=root / "made",
            num_chunks=2, generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return [*found, rows[:]]

    assert_same_under_any_default(flow)


def test_maps_and_hashes_take_rows():
    boards = torch.arange(80, device=CPU).view(20, 4)
    keys = TensorDict({"board": boards}, [20])
    values = TensorDict({"value": boards[:, 0].float()}, [20])

    def flow():
        pairs = TensorDictMap.from_tensordict_pair(keys, values, in_keys=["board"])
        pairs[keys] = values
        hashes = [SipHash(), RandomProjectionHash(n_components=3, seed=1)]
        found = [one(boards.float()) for one in hashes]
        return [pairs[keys], pairs.contains(keys), *found, HashToInt()(boards[:, 0])]

    assert_same_under_any_default(flow)


def test_forests_and_searches_run():
    batch = steps()[:5]
    logits, states = torch.zeros(4, 2, device=CPU), torch.arange(4.0, device=CPU)

    def model(state, action):
        after = state + action
        return SearchStep(after, after / 8, logits, after / 4, 0.9)

    def flow():
        forest = MCTSForest()
        forest.extend(batch)
        tree = forest.get_tree(batch[0])
        trees = MCTSTrees(num_trees=4, num_nodes=33, num_actions=2, rule=GumbelHalving(32))
        trees.reset(logits=logits, generator=torch.Generator().manual_seed(3))
        trees.search(model, states, 32)
        found = [trees.root_visits, trees.root_values, trees.best_actions()]
        return [tree.to_string(), tree.count, tree.wins, tree.rollout, *found]

    assert_same_under_any_default(flow)
