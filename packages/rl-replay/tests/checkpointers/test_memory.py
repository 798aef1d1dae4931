"""Forms are streamed: dumping and loading take little memory beyond the buffer's."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, resource, sys, tempfile, torch
from tensordict import TensorDict
from rl_replay import *

form, interleaved = sys.argv[1], sys.argv[2] == "interleaved"
COUNT, WIDTH = 200_000, 200

def made():
    buffer = ReplayBuffer(storage=LazyTensorStorage(COUNT))
    buffer.storage.checkpointer = globals()[form]()
    return buffer

def batch(first, count):
    number = torch.arange(first, first + count)
    after = number + (4 if interleaved else 1)
    ids = number % 4 if interleaved else number // 100
    step = number // 4 if interleaved else number % 100
    wide = torch.ones(WIDTH)
    return TensorDict(
        {
            "observation": number[:, None] * wide,
            "collector": {"traj_ids": ids, "traj_step": step},
            "next": {"observation": after[:, None] * wide, "reward": number[:, None].float()},
        },
        [count],
    )

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

one, two = made(), made()
for first in range(0, COUNT, 5000):
    one.extend(batch(first, 5000))
    two.extend(batch(first, 5000))
with tempfile.TemporaryDirectory() as folder:
    warm = made()
    warm.extend(batch(0, 100))
    warm.dumps(folder + "/warm")
    warm.loads(folder + "/warm")
    gc.collect()
    before = peak()
    one.dumps(folder + "/dump")
    dumped = peak()
    two.loads(folder + "/dump")
    loaded = peak()
print(dumped - before, loaded - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["in order", "interleaved"])
@pytest.mark.parametrize(
    "form", ["FlatStorageCheckpointer", "NestedStorageCheckpointer", "H5StorageCheckpointer"]
)
def test_dumps_and_loads_take_at_most_64_mib_beyond_the_buffer(form, order):
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, form, order],
        capture_output=True,
        text=True,
        check=True,
    )
    dumped, loaded = map(float, made.stdout.split()[-2:])
    assert dumped <= 64
    assert loaded <= 64
