"""Transforms, buffers, maps and searches with data on a CUDA device."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict

from rl_layout import Segments, check_layout
from rl_layout.keys import STORAGE_ID
from rl_layout.synthetic import trajectories
from rl_replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from rl_transforms import (
    HindsightRelabel,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
)
from rl_trees import (
    PUCT,
    BinaryToDecimal,
    GumbelHalving,
    HashToInt,
    MCTSForest,
    MCTSTrees,
    RandomProjectionHash,
    SearchStep,
    SipHash,
    TensorDictMap,
)
from test_catalogue import TRANSFORMS, PicturesEnv, assert_same, named, played

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
LENGTHS = [5, 9, 1, 7, 3, 12, 2, 9]


def stored(device, batch, **settings):
    """A buffer of known draws with a batch in it."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(64, device=device),
        generator=torch.Generator().manual_seed(3),
        **settings,
    )
    buffer.extend(batch)
    return buffer


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named)
def test_transforms_do_on_the_device_what_they_do_on_the_cpu(transform):
    plain = played(PicturesEnv())
    expected = transform(plain.clone())
    there = copy.deepcopy(transform).to(DEVICE)
    found = there(plain.to(DEVICE))
    if type(transform).__name__ != "DeviceCastTransform":
        assert all(leaf.device.type == DEVICE for leaf in found.values(True, True))
    for key, value in expected.items(True, True):
        torch.testing.assert_close(found[key].cpu(), value, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named)
def test_a_buffer_of_the_device_transforms_as_one_of_the_cpu(transform):
    plain = played(PicturesEnv())
    found = {}
    for device in ("cpu", DEVICE):
        buffer = stored(
            device, plain, transform=copy.deepcopy(transform).to(device), batch_size=8,
            sampler=SliceSampler(slice_len=2, strict_length=False),
        )  # fmt: skip
        found[device] = buffer.sample()
    for key, value in found["cpu"].items(True, True):
        torch.testing.assert_close(
            found[DEVICE][key].cpu(), value, rtol=1e-5, atol=1e-6, equal_nan=True
        )


SAMPLERS = {
    "without replacement": SamplerWithoutReplacement,
    "slices without": lambda: SliceSamplerWithoutReplacement(slice_len=3, strict_length=False),
    "by priority": lambda: PrioritizedSampler(64, 0.7, 0.5),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_draw_on_the_device_what_they_draw_on_the_cpu(name):
    found = {}
    for device in ("cpu", DEVICE):
        torch.manual_seed(2)
        buffer = stored(device, trajectories(LENGTHS), sampler=SAMPLERS[name](), batch_size=12)
        found[device] = [buffer.sample() for _ in range(3)]
    for one, other in zip(found[DEVICE], found["cpu"], strict=True):
        for key, value in other.exclude(STORAGE_ID).items(True, True):
            torch.testing.assert_close(one[key].cpu(), value, rtol=1e-5, atol=1e-6)
        assert one["observation"].device.type == DEVICE


def aim(rows):
    """Rewards of a goal."""
    return -(rows["next", "achieved_goal"] - rows["desired_goal"]).norm(dim=-1)


WITH_ROWS = {
    "several steps": lambda: MultiStepTransform(3, 0.9),
    "final goals": lambda: HindsightRelabel(aim, her_ratio=1, strategy="final"),
    "future goals": lambda: HindsightRelabel(aim, her_ratio=1),
    "next states": NextStateReconstructor,
    "deltas": lambda: NextObservationDelta(["observation"]),
}


@pytest.mark.parametrize("whole", [False, True], ids=["rows", "slices"])
@pytest.mark.parametrize("name", WITH_ROWS)
def test_transforms_that_read_other_rows_do_so_on_the_device(name, whole):
    batch = trajectories(LENGTHS)
    for key in ("achieved_goal", ("next", "achieved_goal")):
        batch[key] = batch[(*key[:-1], "observation") if key[0] == "next" else "observation"]
    batch["desired_goal"] = torch.full((len(batch), 2), 50.0)
    found = {}
    for device in ("cpu", DEVICE):
        transform = WITH_ROWS[name]().to(device)
        kept = batch.exclude(("next", "observation")) if name == "next states" else batch
        kept = transform.rows(kept) if name == "deltas" else kept
        sampler = SliceSampler(slice_len=4, strict_length=False) if whole else None
        torch.manual_seed(2)
        buffer = stored(device, kept, transform=transform, sampler=sampler, batch_size=12)
        found[device] = buffer.sample()
        assert found[device]["observation"].device.type == device
    for key, value in found["cpu"].items(True, True):
        one = found[DEVICE][key].cpu()
        torch.testing.assert_close(one, value, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("lossless", [False, True])
def test_a_dump_of_the_device_loads_anywhere(lossless, tmp_path):
    def made(device):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(64, device=device, lossless=lossless), batch_size=8
        )

    torch.manual_seed(2)
    batch = trajectories(LENGTHS)
    buffer = made(DEVICE)
    buffer.extend(batch.to(DEVICE))
    buffer.dumps(tmp_path / "dump")
    for device in ("cpu", DEVICE):
        other = made(device)
        other.loads(tmp_path / "dump")
        assert_same(other[:].cpu(), buffer[:].cpu())
        assert other.sample()["observation"].device.type == device


def test_the_best_rows_and_ensembles_are_kept_on_the_device():
    torch.manual_seed(2)
    batch = trajectories(LENGTHS)
    batch["rank"] = torch.randn(len(batch))
    best = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10, device=DEVICE), writer=TensorDictMaxValueWriter("rank"),
        batch_size=4,
    )  # fmt: skip
    best.extend(batch.to(DEVICE))
    kept = best[:]["rank"].sort(descending=True).values
    assert torch.equal(kept.cpu(), batch["rank"].sort(descending=True).values[:10])
    members = [stored(DEVICE, trajectories([length]), batch_size=4) for length in (5, 9)]
    both = ReplayBufferEnsemble(*members, batch_size=8, sample_from_all=True)
    assert both.sample()["observation"].device.type == DEVICE
    assert best.sample()["rank"].device.type == DEVICE


def test_layout_is_read_from_markers_on_the_device():
    batch = trajectories(LENGTHS)
    there = Segments.of(batch.to(DEVICE))
    assert there.starts.device.type == DEVICE
    assert torch.equal(there.lengths.cpu(), Segments.of(batch).lengths)
    assert check_layout(batch.to(DEVICE)).ok


HASHES = {
    "SipHash": lambda: SipHash(),
    "RandomProjectionHash": lambda: RandomProjectionHash(n_components=8, seed=1),
    "HashToInt": lambda: HashToInt(),
}


@pytest.mark.parametrize("name", HASHES)
def test_hashes_of_the_device_are_those_of_the_cpu(name):
    values = torch.randint(5, (9, 3)).float() if name != "HashToInt" else torch.randint(5, (9,))
    one, other = HASHES[name](), HASHES[name]()
    found = one(values.to(DEVICE))
    assert found.device.type == DEVICE
    assert torch.equal(found.cpu(), other(values))


def test_bits_of_the_device_are_numbers():
    bits = torch.tensor([[1, 0, 1], [0, 1, 1]])
    count = BinaryToDecimal(3, DEVICE, torch.int64, convert_to_binary=False)
    assert count(bits.to(DEVICE)).tolist() == [5, 3]


def test_a_map_takes_rows_of_the_device():
    keys = TensorDict({"board": torch.randint(9, (20, 4))}, [20], device=DEVICE)
    keys["board"][:, 0] = torch.arange(20)
    values = TensorDict({"value": torch.randn(20)}, [20], device=DEVICE)
    map_ = TensorDictMap.from_tensordict_pair(keys, values, in_keys=["board"])
    map_[keys] = values
    assert torch.equal(map_[keys]["value"].to(DEVICE), values["value"])
    assert map_.contains(keys).all()


def test_a_forest_takes_steps_of_the_device():
    forest, here = MCTSForest(), MCTSForest()
    steps = trajectories([6])
    forest.extend(steps.to(DEVICE))
    here.extend(steps)
    assert (
        forest.get_tree(steps[:1].to(DEVICE)[0]).to_string() == here.get_tree(steps[0]).to_string()
    )


def test_a_search_takes_evaluations_of_the_device():
    found = {}
    for device in ("cpu", DEVICE):
        trees = MCTSTrees(num_trees=4, num_nodes=33, num_actions=2, rule=PUCT())
        trees.reset(logits=torch.zeros(4, 2, device=device))
        for _ in range(32):
            leaves = trees.select()
            reward = leaves.action.to(device).float()
            logits, value = torch.zeros(4, 2, device=device), torch.zeros(4, device=device)
            trees.expand(leaves, reward, logits=logits, value=value)
            trees.backup(leaves)
        found[device] = trees.best_actions().tolist()
    assert found["cpu"] == found[DEVICE]


@pytest.mark.parametrize("rule", [PUCT(), GumbelHalving(32)], ids=["puct", "gumbel"])
def test_a_search_keeps_states_of_the_device_there(rule):
    def walk(states, actions):
        assert states.device.type == actions.device.type == where
        after = states + actions.unsqueeze(1)
        logits = torch.stack([after[:, 0], -after[:, 0]], 1) / 8
        return SearchStep(after, after[:, 0] / 8, logits, after[:, 0] / 4, 0.9)

    found = {}
    for where in ("cpu", DEVICE):
        trees = MCTSTrees(num_trees=4, num_nodes=33, num_actions=2, rule=rule)
        noise = torch.Generator().manual_seed(0)
        trees.reset(logits=torch.zeros(4, 2, device=where), generator=noise)
        trees.search(walk, torch.arange(8.0, device=where).view(4, 2), 32)
        found[where] = trees.root_visits.tolist()
    assert found["cpu"] == found[DEVICE]
