"""Every form keeps every row bit for bit, and a file that is not whole is refused."""

import tempfile

import h5py
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyMemmapStorage,
    LazyTensorStorage,
    NestedStorageCheckpointer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    StorageEnsemble,
    StorageEnsembleCheckpointer,
    TensorDictPrioritizedReplayBuffer,
    TensorStorageCheckpointer,
)

FORMS = {
    "tensor": TensorStorageCheckpointer,
    "flat": FlatStorageCheckpointer,
    "nested": NestedStorageCheckpointer,
    "h5": H5StorageCheckpointer,
    "gzip": lambda: H5StorageCheckpointer(compression="gzip", h5_kwargs={"shuffle": True}),
    "apart": lambda: FlatStorageCheckpointer(done_keys=["done"], reward_keys=["observation"]),
}

COMPACT = ["flat", "nested", "h5"]


def assert_same(one, two):
    """Rows, places, row ids and trajectories are the same, bit for bit."""
    first, second = one[:], two[:]
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    for key in first.keys(True, True):
        mine, other = first[key], second[key]
        assert mine.dtype == other.dtype
        dense = (leaf.clone(memory_format=torch.contiguous_format) for leaf in (mine, other))
        first_bits, second_bits = (leaf.view(torch.uint8) for leaf in dense)
        assert torch.equal(first_bits, second_bits), key
    assert one.storage.ring.window() == two.storage.ring.window()
    lengths = (sorted(b.storage.trajectories().lengths().tolist()) for b in (one, two))
    assert next(lengths) == next(lengths)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["memory", "file", "lossless", "columns", "larger", "lanes"])
def test_rows_come_back_bit_for_bit_into_the_same_places(tmp_path, form, kind, buffer):
    storages = {
        "memory": lambda: LazyTensorStorage(17),
        "file": lambda: LazyMemmapStorage(17),
        "lossless": lambda: LazyTensorStorage(17, lossless=True),
        "columns": lambda: LazyTensorStorage(18, ndim=2),
        "larger": lambda: LazyTensorStorage(17),
        "lanes": lambda: LazyTensorStorage(40, lanes=2),
    }
    options = {"shared": True} if kind == "lanes" else {}
    one = buffer(form, storages[kind](), **options)
    two = buffer(form, LazyTensorStorage(23) if kind == "larger" else storages[kind](), **options)
    batch = (
        environments(3, 10, [4, 3], [EndKind.TERMINATED])
        if kind == "columns"
        else trajectories([9, 4, 12])
    )
    for part in batch.split(5, dim=-1):  # the ring is gone around
        one.extend(part)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    if kind == "larger":
        assert (two[:]["observation"] == batch[-17:]["observation"]).all()
        return
    assert_same(one, two)


@pytest.mark.parametrize("form", FORMS)
def test_the_loop_of_the_page_on_checkpoints(tmp_path, form, buffer):
    one, two = (buffer(form, LazyMemmapStorage(100, ndim=2)) for _ in range(2))
    whole = environments(3, 66, [17, 30, 9], [EndKind.TERMINATED, EndKind.TRUNCATED])
    for batch in whole.split(22, dim=1):
        one.extend(batch)
        assert one.storage.max_size == 102
        one.dumps(tmp_path)
        two.loads(tmp_path)
        assert_same(one, two)
    assert len(one) == 102


@settings(deadline=None, max_examples=25)
@given(data=st.data(), form=st.sampled_from(["flat", "nested", "h5"]))
def test_any_flags_and_any_values_come_back(data, form, buffer):
    capacity = data.draw(st.integers(4, 24))
    one, two = (buffer(form, LazyTensorStorage(capacity)) for _ in range(2))
    special = torch.tensor([0.0, -0.0, float("nan"), 1.0])
    for _ in range(data.draw(st.integers(1, 5))):
        count = data.draw(st.integers(1, capacity))
        seed = data.draw(st.integers(0, 2**20))
        random = torch.Generator().manual_seed(seed)

        def pick(*shape, high=2, random=random):
            return torch.randint(0, high, shape, generator=random)

        observation = special[pick(count, 2, high=4)]
        after = torch.cat([observation[1:], special[pick(1, 2, high=4)]])
        after[pick(count) == 1] = 7.0 if data.draw(st.booleans()) else after[0, 0]
        rows = {
            "observation": observation,
            "half": special[pick(count, 1, high=4)].bfloat16(),
            "action": pick(count, 1, high=5),
            "collector": {"traj_ids": pick(count, high=3), "traj_step": torch.arange(count)},
            "next": {
                "observation": after,
                "half": special[pick(count, 1, high=4)].bfloat16(),
                "done": pick(count, 1, high=8) == 0,
                "reward": special[pick(count, 1, high=4)],
            },
        }
        one.extend(TensorDict(rows, [count]))
    with tempfile.TemporaryDirectory() as folder:
        one.dumps(folder)
        two.loads(folder)
    assert_same(one, two)


@pytest.mark.parametrize("form", COMPACT)
def test_interleaved_producers_are_kept_by_trajectory(tmp_path, form, buffer):
    one, two = (buffer(form, LazyTensorStorage(60)) for _ in range(2))
    sources = [trajectories([9, 8], first_id=10 * n) for n in range(3)]
    for step in range(17):
        for rows in sources:
            one.extend(rows[step : step + 1])
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_same(one, two)


def test_observations_are_in_the_file_once(tmp_path, buffer):
    rows = trajectories([40, 60])
    rows["observation"] = torch.rand(100, 500)
    after = torch.cat([rows["observation"][1:], torch.rand(1, 500)])
    after[39] = torch.rand(500)
    rows["next", "observation"] = after
    sizes = {}
    for form in ("tensor", *COMPACT):
        one, two = (buffer(form, LazyTensorStorage(100)) for _ in range(2))
        one.extend(rows)
        one.dumps(tmp_path / form)
        two.loads(tmp_path / form)
        assert_same(one, two)
        files = [name for name in (tmp_path / form).iterdir() if name.name != "checkpoint.h5"]
        sizes[form] = sum(name.stat().st_size for name in files)
    observations = 100 * 500 * 4
    for form in COMPACT:
        of_datasets = 40_000 if form == "h5" else 0  # HDF5 takes 2 KB for each and its chunks
        assert sizes["tensor"] - sizes[form] > 0.9 * observations - of_datasets, sizes


def test_a_normaliser_that_changes_every_observation_costs_no_side_table(tmp_path, buffer):
    rows = trajectories([50])
    rows["next", "observation"] = rows["next", "observation"] * 2 + 1
    one, two = (buffer("h5", LazyTensorStorage(50)) for _ in range(2))
    one.extend(rows)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_same(one, two)
    with h5py.File(tmp_path / "checkpoint.h5") as file:
        assert "observation" in file["steps"]
        assert "exceptions" not in file


def test_trajectories_are_read_from_the_file_by_other_programs(tmp_path, buffer):
    one = buffer("h5")
    one.extend(trajectories([3, 5, 4]))
    one.storage.checkpointer = H5StorageCheckpointer(checkpoint_file="rows.h5")
    one.dumps(tmp_path)
    with h5py.File(tmp_path / "rows.h5") as file:
        lengths = file["lengths"][:]
        begin = int(lengths[0])
        second = file["shared/observation"][begin + 1 : begin + 1 + lengths[1] + 1]
        actions = file["steps/action"][begin : begin + lengths[1]]
        assert file["steps/next/reward"].shape == (12, 1)
    assert second[:-1].tolist() == one[:]["observation"][3:8].tolist()
    assert second[1:].tolist() == one[:]["next", "observation"][3:8].tolist()
    assert actions.tolist() == one[:]["action"][3:8].tolist()


@pytest.mark.parametrize("form", COMPACT)
def test_sampler_and_priorities_come_back_too(tmp_path, form):
    def make():
        made = TensorDictPrioritizedReplayBuffer(
            alpha=0.7, beta=0.5, storage=LazyTensorStorage(20), batch_size=8
        )
        made.storage.checkpointer = FORMS[form]()
        made.set_rng(torch.Generator().manual_seed(0))
        return made

    one, two = make(), make()
    for rows in (trajectories([14]), trajectories([13], first_id=50)):
        one.extend(rows)
    one.update_priority(torch.arange(20), torch.rand(20))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    for _ in range(3):
        samples = [buffer.sample().exclude(keys.STORAGE_ID) for buffer in (one, two)]
        assert (samples[0] == samples[1]).all()


@pytest.mark.parametrize("form", COMPACT)
def test_rows_alone_are_taken_by_a_buffer_that_samples_in_another_way(tmp_path, form, buffer):
    one = buffer(form)
    two = ReplayBuffer(
        storage=LazyTensorStorage(30), sampler=SamplerWithoutReplacement(), batch_size=5
    )
    one.extend(trajectories([5, 6]))
    one.dumps(tmp_path)
    two.loads(tmp_path, rows_only=True)
    assert_same(one, two)
    # the dump names its format: no checkpointer is needed to read it
    two.storage.checkpointer = FlatStorageCheckpointer()
    two.loads(tmp_path, rows_only=True)
    assert_same(one, two)


@pytest.mark.parametrize("form", FORMS)
def test_a_storage_is_dumped_without_its_buffer(tmp_path, form):
    one, two = LazyTensorStorage(9), LazyTensorStorage(9)
    one.extend(trajectories([4, 3]))
    checkpointer = FORMS[form]()
    checkpointer.dumps(one, tmp_path)
    checkpointer.loads(two, tmp_path)
    assert (one.read(torch.arange(7)) == two.read(torch.arange(7))).all()


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_storage_is_loaded_as_an_empty_one(tmp_path, form, buffer):
    one, two = buffer(form), buffer(form)
    two.extend(trajectories([3]))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert len(two) == 0


def test_a_second_dump_replaces_the_file_and_its_name(tmp_path, buffer):
    one, two = buffer("h5"), buffer("h5")
    one.extend(trajectories([5]))
    one.dumps(tmp_path)
    one.extend(trajectories([6], first_id=50))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_same(one, two)
    assert len(list(tmp_path.glob("rows-*"))) == 1
    with h5py.File(tmp_path / "checkpoint.h5") as file:
        assert file["lengths"][:].tolist() == [5, 6]


def test_a_dump_in_another_form_leaves_no_file_of_the_one_before(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(50))
    buffer.extend(trajectories([5]))
    buffer.storage.checkpointer = H5StorageCheckpointer()
    buffer.dumps(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    buffer.extend(trajectories([4], first_id=50))
    buffer.storage.checkpointer = H5StorageCheckpointer(checkpoint_file="other.h5")
    buffer.dumps(tmp_path)
    second_names = [one.name for one in tmp_path.glob("*.h5") if not one.name.startswith("rows-")]
    assert second_names == ["other.h5"]
    buffer.storage.checkpointer = None
    buffer.dumps(tmp_path)
    assert not list(tmp_path.glob("*.h5"))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    other = ReplayBuffer(storage=LazyTensorStorage(50))
    other.loads(tmp_path)
    assert len(other) == 9


def test_storages_of_an_ensemble_are_kept_each_in_its_form(tmp_path):
    one, two = (StorageEnsemble(LazyTensorStorage(9), LazyTensorStorage(9)) for _ in range(2))
    one[1].checkpointer = H5StorageCheckpointer()
    for number, storage in enumerate(one):
        storage.extend(trajectories([4], first_id=number))
    StorageEnsembleCheckpointer().dumps(one, tmp_path)
    StorageEnsembleCheckpointer().dumps(one, tmp_path)
    StorageEnsembleCheckpointer().loads(two, tmp_path)
    for mine, other in zip(one, two, strict=True):
        assert (mine.read(torch.arange(4)) == other.read(torch.arange(4))).all()
    assert len(list(tmp_path.glob("folder-*"))) == 1
    with pytest.raises(ValueError, match="this ensemble has 1"):
        StorageEnsembleCheckpointer().loads(two[:1], tmp_path)
    with pytest.raises(TypeError, match="expected a StorageEnsemble"):
        StorageEnsembleCheckpointer().dumps(one[0], tmp_path)


def test_hooks_of_a_checkpointer_change_the_rows(tmp_path, buffer):
    one, two = buffer("flat"), buffer("flat")
    one.extend(trajectories([4]))
    one.storage.checkpointer.register_save_hook(lambda rows: rows.select("observation"))
    two.storage.checkpointer.register_load_hook(lambda rows: rows)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert list(two[:].keys()) == ["observation"]
    checkpointer = one.storage.checkpointer
    checkpointer.dumps(one.storage, tmp_path)
    two.storage.checkpointer.loads(two.storage, tmp_path)
    assert len(two) == 4


def test_slices_of_a_loaded_buffer_are_those_of_the_dumped_one(tmp_path, buffer):
    def make():
        made = buffer("h5", sampler=SliceSampler(slice_len=3), batch_size=9)
        made.set_rng(torch.Generator().manual_seed(2))
        return made

    one, two = make(), make()
    one.extend(trajectories([20]))
    one.extend(trajectories([21], first_id=50))
    one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    for _ in range(3):
        assert (one.sample() == two.sample()).all()


def test_the_names_of_leaves_may_be_anything(tmp_path, buffer):
    one, two = buffer("h5"), buffer("h5")
    names = ("a/b", ".", "%2F", ("x", "é"))
    rows = {name: torch.full((2,), number) for number, name in enumerate(names)}
    one.extend(TensorDict(rows, [2], names=["time"]))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_same(one, two)
