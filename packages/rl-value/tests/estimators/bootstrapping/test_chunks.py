"""Networks that are called a chunk at a time."""

import pytest
import torch
from tensordict.nn import (
    TensorDictModule,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rl_layout import Segments, keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_value import GAE
from rl_value.estimators.bootstrapping.next_values import input_leaves, roles_of
from rl_value.estimators.bootstrapping.sequence_layout import SlotReader, one_step_slots

FLAGS = (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({"num_chunks": 4}, 4),
        ({"value_chunk_size": 5}, 6),
        ({"num_chunk": 12}, 4),
    ],
)
def test_chunks_hold_whole_segments_and_no_more_than_they_may(settings, largest, critic, prepared):
    batch = prepared(trajectories([3, 1, 2, 2], EndKind.TRUNCATED))
    net, seen = critic(), []
    net.module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    GAE(gamma=0.9, lmbda=0.9, value_network=net, **settings)(batch)
    assert max(map(len, seen)) == largest
    assert sum(map(len, seen)) == 12
    assert all(rows[0, 1] == 0 for rows in seen)  # each begins with the first step of one


@pytest.mark.parametrize(("dim", "largest"), [(0, 5), (1, 25)])  # a 20th and a 6th of 150
def test_the_dimension_that_chunks_count_is_one_of_the_batch_that_was_given(
    dim, largest, critic, prepared
):
    batch = prepared(environments(6, 20, [4], [EndKind.TRUNCATED])).transpose(0, 1)  # [T, B]
    net, seen = critic(), []
    net.module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    settings = {"time_dim": 0, "value_chunk_size": 1, "value_chunk_dim": dim}
    GAE(gamma=0.9, lmbda=0.9, value_network=net, **settings)(batch.contiguous())
    assert sum(seen) == 150  # 30 trajectories of 4, each with its last next observation
    assert max(seen) == largest


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside held at once."""

    def __init__(self, batch):
        super().__init__()
        self.given = {leaf.untyped_storage().data_ptr() for leaf in batch.values(True, True)}
        self.live, self.bytes = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage.data_ptr() not in self.given:
                    weak = StorageWeakRef(storage)
                    self.live[weak.cdata] = weak, storage.nbytes()
        self.live = {key: held for key, held in self.live.items() if not held[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.live.values()))
        return found


@pytest.mark.parametrize("settings", [{"value_chunk_size": 60}, {"num_chunks": 12}])
@pytest.mark.parametrize("marked", [False, True])
def test_chunks_cap_the_memory_that_a_network_needs(settings, marked):
    batch = trajectories([30, 10, 20] * 12, EndKind.TRUNCATED)  # 720 rows
    batch["observation"] = torch.randn(720, 50)
    batch["next", "observation"] = torch.randn(720, 50)
    body = torch.nn.Sequential(torch.nn.Linear(50, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
    net = TensorDictModule(body, ["observation"], ["state_value"])
    if marked:  # reads the order of rows, as a recurrent network does
        reads = ["observation", "is_init"]
        net = TensorDictModule(lambda x, _: body(x), reads, ["state_value"])
    peaks = []
    for chunks in ({}, settings):
        made = batch.clone()
        with Peak(made) as peak:
            GAE(gamma=0.9, lmbda=0.9, value_network=net, **chunks)(made)
        peaks.append(peak.bytes)
    whole, capped = peaks
    assert whole > 720 * 300 * 4  # a hidden layer of all rows
    assert capped < 720 * 50 * 4 * 2  # less than two copies of the observations
    assert capped < whole / 5


def test_batch_with_time_first_is_copied_one_chunk_at_a_time(critic):
    batch = environments(12, 60, [7, 9], KINDS)
    batch["observation"] = torch.randn(60, 12, 50).transpose(0, 1)
    batch["next", "observation"] = torch.randn(60, 12, 50).transpose(0, 1)
    segments = Segments.of(batch)
    slots = one_step_slots(segments)
    with Peak(batch) as peak:
        reader = SlotReader(input_leaves(roles_of(critic()), batch), segments, slots, None)
        made, size = next(iter(reader.inputs(60)))
    assert size > 30
    assert peak.bytes < 2.1 * 60 * 50 * 4  # the rows of the chunk, and what is put into them
    whole = batch["observation"].contiguous().view(-1, 50)
    after = batch["next", "observation"].contiguous().view(-1, 50)
    rows, ahead = segments.rows[slots.source[:size]], slots.is_next[:size, None]
    assert torch.equal(made["observation",], torch.where(ahead, after[rows], whole[rows]))
