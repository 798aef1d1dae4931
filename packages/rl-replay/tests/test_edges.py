"""Errors at the public edges name the arguments that were given."""

import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, RandomSampler, ReplayBuffer, RoundRobinWriter


@pytest.fixture
def buffer():
    made = ReplayBuffer(storage=LazyTensorStorage(9), batch_size=2)
    made.extend(TensorDict({"a": torch.zeros(3)}, [3]))
    return made


@pytest.mark.parametrize("path", [3, b"x", None, [1], "", torch.zeros(2)])
@pytest.mark.parametrize("call", ["dumps", "loads"])
def test_path_that_names_no_folder_is_refused(buffer, call, path):
    with pytest.raises(TypeError, match="path is the name of a folder, got"):
        getattr(buffer, call)(path)


@pytest.mark.parametrize("index", [1.5, {}, object(), torch.float64])
def test_errors_of_torch_name_the_arguments_of_the_call(buffer, index):
    with pytest.raises((IndexError, TypeError)) as failed:
        buffer[index]
    assert "ReplayBuffer.__getitem__ was given" in failed.value.__notes__[0]


def test_errors_of_the_package_get_no_note(buffer):
    with pytest.raises(KeyError) as failed:
        buffer.extend(TensorDict({"b": torch.zeros(1)}, [1]))
    assert not hasattr(failed.value, "__notes__")


def test_states_and_rows_of_a_wrong_type_are_refused(buffer):
    with pytest.raises(ValueError, match="no state of a buffer: list"):
        buffer.load_state_dict([1])
    with pytest.raises(TypeError, match="rows are a tensordict, got int"):
        buffer.update_rows(torch.tensor([0]), 3)


def test_sampler_names_an_argument_that_it_does_not_take():
    with pytest.raises(TypeError) as failed:
        RandomSampler(3)
    assert "RandomSampler was given 3" in failed.value.__notes__[0]


def fail(_):
    raise RuntimeError("no")


class FailingWriter(RoundRobinWriter):
    """Fails at every write."""

    check = staticmethod(fail)


@pytest.mark.parametrize(("call", "given"), [("add", "a"), ("extend", "ab"), ("sample", 2)])
def test_errors_of_parts_name_the_arguments_of_the_call(call, given):
    buffer = ReplayBuffer(writer=FailingWriter() if call != "sample" else None, collate_fn=fail)
    if call == "sample":
        buffer.extend(["a", "b"])
    with pytest.raises(RuntimeError) as failed:
        getattr(buffer, call)(given)
    assert f"ReplayBuffer.{call} was given {given!r}" in failed.value.__notes__[0]


def test_sampler_names_what_is_no_storage():
    with pytest.raises(TypeError, match="storage: expected a storage, got 3"):
        RandomSampler().sample(3, 2)
