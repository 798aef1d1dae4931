import time

import pytest
import torch

from rl_datasets import BaseDatasetExperienceReplay
from rl_datasets.testing import ListSource, toy_episodes
from rl_replay import (
    LazyMemmapStorage,
    PrioritizedSampler,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)


class Toy(BaseDatasetExperienceReplay):
    """Ten rows of two episodes, which are "downloaded" and counted."""

    family = "toy"
    fetched = 0
    lengths = (6, 4)

    @classmethod
    def known_ids(cls):
        return ["toy/walk-v0", "toy/run-v0", "other/jump-v0"]

    def source(self, path):
        return ListSource(toy_episodes(self.lengths))

    def fetch(self, folder):
        type(self).fetched += 1


@pytest.fixture
def make(tmp_path):
    Toy.fetched = 0

    def made(dataset_id="toy/walk-v0", kind=Toy, **options):
        return kind(dataset_id, **{"root": tmp_path, "verbose": False, **options})

    return made


def test_it_is_downloaded_once_and_opened_after_that(make):
    first, again = make(batch_size=4), make(batch_size=4, download=False)
    assert Toy.fetched == 1
    assert (first[:] == again[:]).all()
    assert again.sample().shape == (4,)
    make(download="force")
    assert Toy.fetched == 2


@pytest.mark.parametrize("error", [ConnectionError, FileNotFoundError, KeyboardInterrupt])
def test_a_download_that_brought_nothing_leaves_no_folder(make, tmp_path, error):
    class Absent(Toy):
        def fetch(self, folder):
            (folder / "data" / "parts").mkdir(parents=True)
            raise error("nothing came")

    with pytest.raises(error, match="nothing came"):
        make(kind=Absent)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "toy").mkdir()  # the user's own stays
    with pytest.raises(error, match="nothing came"):
        make(kind=Absent)
    assert [path.name for path in tmp_path.rglob("*")] == ["toy"]


def test_a_download_that_was_cut_keeps_what_came(make, tmp_path):
    class Cut(Toy):
        def fetch(self, folder):
            (folder / "empty").mkdir(exist_ok=True)
            with (folder / "rows.part").open("a") as file:
                file.write("x")
            if type(self).fetched < 2:
                type(self).fetched += 1
                raise ConnectionError

    for size in (1, 2):
        with pytest.raises(ConnectionError):
            make(kind=Cut)
        (left,) = (tmp_path / "toy").rglob("downloading")
        assert [path.name for path in left.iterdir()] == ["rows.part"]
        assert (left / "rows.part").stat().st_size == size
    make(kind=Cut)
    (whole,) = (tmp_path / "toy").rglob("rows.part")
    assert (whole.parent.name, whole.read_text()) == ("files", "xxx")


def test_the_report_is_printed_by_the_first_conversion_only(make, capsys):
    make(verbose=True)
    assert "toy/walk-v0 (memory): 10 steps, 2 episodes" in capsys.readouterr().out
    make(verbose=True)
    assert not capsys.readouterr().out


def test_any_sampler_and_transform_goes(make):
    slices = make(batch_size=8, sampler=SliceSampler(slice_len=4)).sample()
    assert slices["collector", "slice_ids"].tolist() == [0] * 4 + [1] * 4
    every = make(batch_size=10, sampler=SamplerWithoutReplacement()).sample()
    assert sorted(every["index"].tolist()) == list(range(10))
    drawn = make(batch_size=3, sampler=PrioritizedSampler(10, alpha=0.6, beta=0.4)).sample()
    assert "priority_weight" in drawn
    changed = make(batch_size=3, transform=lambda rows: rows.set("two", rows["episode"] * 2))
    sample = changed.sample()
    assert torch.equal(sample["two"], sample["episode"] * 2)


def test_samples_take_the_path_of_a_mapped_storage(make):
    data = make(batch_size=4)
    once = ["observation", ("info", "count")]
    plain = TensorDictReplayBuffer(storage=LazyMemmapStorage(10, lossless=once), batch_size=4)
    plain.extend(data[:])
    of_dataset, of_plain = (str(buffer.explain()).splitlines() for buffer in (data, plain))
    assert of_dataset[1:-1] == of_plain[1:-1]  # all but the class and the writer
    assert "lossless" in of_dataset[-2]


def test_datasets_go_into_an_ensemble(make):
    ensemble = ReplayBufferEnsemble(make(), make("toy/run-v0"), batch_size=8)
    assert ensemble.sample().shape == (2, 4)


def test_slices_can_be_asked_for_by_number_and_length(make):
    assert make(batch_size=8, num_slices=2).sample()["collector", "slice_ids"].max() == 1
    epoch = make(batch_size=4, slice_len=4, replacement=False).sample()
    assert epoch.shape == (4,)


def test_slices_longer_than_every_trajectory_are_refused(make):
    with pytest.raises(ValueError, match=r"slice_len is 7, but the longest .* has 6 steps"):
        make(slice_len=7)
    with pytest.raises(ValueError, match="the longest trajectory"):
        make(sampler=SliceSampler(slice_len=7, strict_length=True))
    assert len(make(batch_size=7, slice_len=7, strict_length=False).sample()) <= 7


def test_arguments_that_contradict_each_other_are_refused(make):
    with pytest.raises(ValueError, match="make a sampler, and one was given"):
        make(slice_len=2, sampler=SliceSampler(slice_len=2))
    with pytest.raises(ValueError, match="expected True, False or 'force', got 'maybe'"):
        make(download="maybe")


def test_an_unknown_id_names_the_closest(make):
    with pytest.raises(ValueError, match="'toy/wlak-v0' among 3: did you mean 'toy/walk-v0'"):
        make("toy/wlak-v0")
    assert Toy.available_datasets == make().available_datasets == list(Toy.known_ids())


def test_nothing_downloaded_says_which_folder_was_looked_at(make, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"not in {tmp_path}/toy/toy/walk-v0, and downl"):
        make(download=False)
    with pytest.raises(FileNotFoundError, match="there is nothing at"):
        make(path=tmp_path / "nowhere")


def test_a_source_that_is_gone_names_copies(make):
    class Gone(Toy):
        sources_of_copies = "A copy is on the moon."
        fetch = BaseDatasetExperienceReplay.fetch

    with pytest.raises(FileNotFoundError, match=r"cannot be downloaded. A copy is on the moon"):
        make(kind=Gone)


def test_nothing_can_be_added(make):
    data = make()
    with pytest.raises(RuntimeError, match="immutable"):
        data.extend(data[:])


def test_its_folders_are_known_and_deleted(make, tmp_path):
    data = make()
    assert data.data_path == tmp_path / "toy" / "toy" / "walk-v0"
    assert data.data_path_root == tmp_path / "toy"
    data.delete()
    assert not data.data_path.exists()


def test_rows_of_another_count_than_reported_are_refused(make):
    path = make().data_path / "rows" / "report.json"
    path.write_text(path.read_text().replace('"steps": 10', '"steps": 11'))
    with pytest.raises(ValueError, match="holds 10 rows, its report says 11"):
        make()
    path.write_text("{")
    with pytest.raises(ValueError, match="no report of a conversion"):
        make()


def test_padded_trajectories_have_a_mask(make):
    data = make(split_trajs=True, batch_size=2)
    assert len(data) == 2
    assert data[:]["collector", "mask"].sum(-1).tolist() == [6, 4]
    assert data.sample()["next", "observation"].shape == (2, 6, 3)


def test_other_files_under_a_path_are_converted_anew(make, tmp_path):
    class OfFile(Toy):
        def source(self, path):
            source = ListSource(toy_episodes([int(path.read_text())]))
            source.__class__ = type("Of", (ListSource,), {"files": [path]})
            return source

    (tmp_path / "file").write_text("3")
    assert len(make(kind=OfFile, path=tmp_path / "file")) == 3
    (tmp_path / "file").write_text("12")
    assert len(make(kind=OfFile, path=tmp_path / "file")) == 12


@pytest.mark.slow
def test_opening_takes_no_longer_for_more_rows(make):
    class Large(Toy):
        lengths = (1_000,) * 1_000

    make(), make("toy/run-v0", kind=Large)
    times = {"toy/walk-v0": [], "toy/run-v0": []}
    for _ in range(20):
        for name, found in times.items():
            begin = time.perf_counter()
            make(name)
            found.append(time.perf_counter() - begin)
    few, many = (min(found) for found in times.values())
    assert many < 3 * few
