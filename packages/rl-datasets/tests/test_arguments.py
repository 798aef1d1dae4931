import inspect

import pytest

import rl_datasets
from rl_datasets import BaseDatasetExperienceReplay
from rl_datasets.testing import ListSource, toy_episodes
from rl_replay import ReplayBuffer, SamplerWithoutReplacement, SliceSampler

COMMON = ["batch_size", "root", "download", "sampler", "writer", "transform"]
LOADING = ["collate_fn", "pin_memory", "prefetch"]
SLICES = ["num_slices", "slice_len", "replacement"]
# the arguments of TorchRL 0.14.1, after the id
PEER = {
    "AtariDQN": [*COMMON, *SLICES, "num_procs", "strict_len", "mp_start_method"],
    "D4RL": [
        *COMMON,
        *LOADING,
        *[
            "split_trajs",
            "from_env",
            "use_truncated_as_done",
            "direct_download",
            "terminate_on_end",
        ],
    ],
    "GenDGRL": ["batch_size", "root", "download"],
    "LeRobot": [
        *COMMON,
        *LOADING,
        *["num_slices", "slice_len", "key_map", "decode_video", "rehydrate", "strict_length"],
    ],
    "Minari": [*COMMON, *LOADING, "split_trajs", "load_from_local_minari"],
    "OpenML": [*COMMON, *LOADING],
    "OpenX": [
        *COMMON,
        *LOADING,
        *SLICES,
        *["shuffle", "pad", "streaming", "split_trajs", "strict_length"],
    ],
    "Roboset": [*COMMON, *LOADING, "split_trajs"],
    "VD4RL": [*COMMON, *LOADING, "split_trajs", "totensor", "image_size", "num_workers"],
}


@pytest.mark.parametrize("name", PEER)
def test_the_arguments_of_the_peer_are_taken(name):
    kind = getattr(rl_datasets, f"{name}ExperienceReplay")
    taken = set()
    for one in (kind, BaseDatasetExperienceReplay, ReplayBuffer):
        taken |= set(inspect.signature(one).parameters)
    assert set(PEER[name]) <= taken


class Toy(BaseDatasetExperienceReplay):
    family = "toy"

    def source(self, path):
        return ListSource(toy_episodes([6, 4]))

    def fetch(self, folder):
        pass


def test_none_is_what_is_done_by_default(tmp_path):
    options = {"root": tmp_path, "verbose": False, "batch_size": 4}
    data = Toy("one", download=None, replacement=None, slice_len=2, **options)
    assert type(data.sampler) is SliceSampler
    data = Toy("one", sampler=None, writer=None, transform=None, prefetch=None, **options)
    assert len(data.sample()) == 4
    whole = Toy("one", replacement=False, **options)
    assert type(whole.sampler) is SamplerWithoutReplacement


def test_slices_by_number_and_by_length_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="num_slices=2 and slice_len=3: give one"):
        Toy("one", num_slices=2, slice_len=3, root=tmp_path, verbose=False)


def test_an_argument_that_nobody_takes_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(TypeError, match="no argument 'slice_length': did you mean 'slice_len'"):
        Toy("one", slice_length=2, root=tmp_path, verbose=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_id": 3}, "dataset_id: expected the name of a dataset, got 3"),
        ({"root": 3}, "root: expected the name of a file or folder, got 3"),
        ({"path": ["a"]}, "path: expected the name of a file or folder, got "),
        ({"streaming": "yes"}, "streaming: expected True, False or StreamOptions, got 'yes'"),
        ({"streaming": 5}, r"streaming: expected True, False or StreamOptions, got 5 \(int\)"),
        ({"split_trajs": None}, "split_trajs: expected True or False, got None"),
        ({"verbose": 1}, "verbose: expected True or False, got 1"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_read(tmp_path, options, message):
    with pytest.raises(TypeError, match=message):
        Toy(**{"dataset_id": "one", "root": tmp_path, **options})
    assert not list(tmp_path.iterdir())
