"""An ensemble in memory and in a folder."""

import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    LazyTensorStorage,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_replay.checkpoint import dump


def ensemble(count=3, rows=6, **options):
    made = ReplayBufferEnsemble(
        *(
            TensorDictReplayBuffer(
                storage=LazyTensorStorage(9), sampler=SamplerWithoutReplacement()
            )
            for _ in range(count)
        ),
        batch_size=6,
        generator=torch.Generator().manual_seed(4),
        **options,
    )
    for number in range(count):
        if rows:
            made[number].extend(trajectories([rows], first_id=100 * number))
    return made


def assert_equal_samples(one, two, count=4):
    for _ in range(count):
        first, second = one.sample(), two.sample()
        assert (first == second).all()


def test_a_loaded_ensemble_draws_what_the_saved_one_draws(tmp_path):
    one, two = ensemble(p=[1, 2, 3]), ensemble(rows=0)
    one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert_equal_samples(one, two)


@pytest.mark.parametrize("way", ["dump", "state"])
def test_a_batch_size_that_is_replaced_is_warned_of(way, tmp_path):
    one, two = ensemble(), ensemble(rows=0)
    one.dumps(tmp_path)
    two.batch_size = 3
    with pytest.warns(UserWarning, match="batch_size 3 of this buffer was replaced by 6"):
        two.loads(tmp_path) if way == "dump" else two.load_state_dict(one.state_dict())
    assert two.batch_size == 6


def test_a_load_that_fails_puts_batch_sizes_back_in_silence():
    one, two = ensemble(), ensemble(rows=0)
    one[0].batch_size, two[0].batch_size = 3, 4
    state = one.state_dict()
    state["buffers"][2]["storage"].pop("rows")
    replaced = pytest.warns(UserWarning, match="batch_size 4 .* replaced by 3")
    with replaced as said, pytest.raises((KeyError, ValueError)):
        two.load_state_dict(state)
    assert len(said) == 1
    assert two[0].batch_size == 4


def test_a_second_dump_replaces_the_first(tmp_path):
    one, two = ensemble(), ensemble(rows=0)
    one.dumps(tmp_path)
    one[1].extend(trajectories([3], first_id=900))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    assert [len(buffer) for buffer in two] == [6, 9, 6]
    assert len(list(tmp_path.glob("folder-*"))) == 1


def test_the_state_of_an_ensemble_goes_through_torch_save(tmp_path):
    one, two = ensemble(p=[1, 2, 3]), ensemble(rows=0)
    torch.save(one.state_dict(), tmp_path / "state.pt")
    two.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_equal_samples(one, two)


def test_a_dump_of_another_ensemble_is_refused_and_nothing_is_lost(tmp_path):
    one, two = ensemble(2), ensemble(3)
    one.dumps(tmp_path)
    with pytest.raises(ValueError, match="of 2 buffers, and this ensemble has 3"):
        two.loads(tmp_path)
    with pytest.raises(ValueError, match="of 2 buffers, and this ensemble has 3"):
        two.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="no state of an ensemble"):
        two.load_state_dict({})
    assert [len(buffer) for buffer in two] == [6, 6, 6]


def test_a_dump_of_a_buffer_is_no_dump_of_an_ensemble(tmp_path):
    one = ensemble(1)
    one[0].dumps(tmp_path)
    with pytest.raises(ValueError, match="no dump of an ensemble"):
        one.loads(tmp_path)


def test_a_dump_of_an_ensemble_is_no_dump_of_a_buffer(tmp_path):
    one = ensemble(2)
    one.dumps(tmp_path)
    for load in (one[0].loads, lambda path: one[0].loads(path, rows_only=True)):
        with pytest.raises(ValueError, match=r"\['ensemble'\]"):
            load(tmp_path)
    assert len(one[0]) == 6


@pytest.mark.parametrize("member", [0, 2])
def test_a_damaged_member_is_found_before_any_changes(tmp_path, member):
    one, two = ensemble(), ensemble(rows=2)
    one.dumps(tmp_path)
    (folder,) = tmp_path.glob("folder-*")
    (data,) = [name for name in (folder / str(member)).glob("data-*") if not name.suffix]
    raw = bytearray(data.read_bytes())
    raw[3] ^= 1
    data.write_bytes(raw)
    with pytest.raises(ValueError, match="altered"):
        two.loads(tmp_path)
    assert [len(buffer) for buffer in two] == [2, 2, 2]


def test_a_member_that_refuses_its_state_leaves_all_as_they_were(tmp_path):
    one, two = ensemble(), ensemble(rows=2)
    two[2].set_storage(LazyTensorStorage(3))
    two[2].extend(trajectories([2]))
    one.dumps(tmp_path)
    for load in (lambda: two.loads(tmp_path), lambda: two.load_state_dict(one.state_dict())):
        with pytest.raises(ValueError, match="make a larger one"):
            load()
        assert [len(buffer) for buffer in two] == [2, 2, 2]


def test_a_name_that_leads_elsewhere_is_refused(tmp_path):
    one = ensemble()
    state = {"members": "../elsewhere", "count": 3}
    dump(tmp_path / "dump", {"ensemble": state})
    with pytest.raises(ValueError, match=r"names the folder '\.\./elsewhere'"):
        one.loads(tmp_path / "dump")
