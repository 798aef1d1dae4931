from multiprocessing.pool import ThreadPool

import pytest
import torch

from rl_datasets import BaseDatasetExperienceReplay, Episode
from rl_datasets.testing import ListSource, toy_episodes
from rl_layout import check_layout
from rl_layout.keys import NEXT_REWARD


class Toy(BaseDatasetExperienceReplay):
    family = "toy"

    def source(self, path):
        return ListSource(toy_episodes([6, 4, 5]))

    def fetch(self, folder):
        pass


def with_norm(rows):
    return rows.set("norm", rows["observation"].norm(dim=-1, keepdim=True))


def without_first(rows):
    return rows[1:] if len(rows) > 4 else None


@pytest.fixture
def make(tmp_path):
    return lambda **options: Toy("one", root=tmp_path, verbose=False, **options)


@pytest.mark.parametrize("options", [{}, {"chunksize": 7}, {"num_chunks": 3}])
def test_new_rows_replace_the_old_ones_for_good(make, options):
    data = make(batch_size=4)
    former = data[:]
    data.preprocess(with_norm, **options)
    again = make(batch_size=4)
    for found in (data[:], again[:]):
        assert torch.equal(found["norm"], former["observation"].norm(dim=-1, keepdim=True))
        assert (found.exclude("norm") == former).all()
        assert not check_layout(found).findings
    assert "norm" in data.sample()
    assert (again.report.steps, again.report.trajectories) == (15, 3)
    assert "norm" not in make(download="force")[:]


def test_workers_and_pools_do_the_same(make, tmp_path):
    data = make()
    made = data.preprocess(
        with_norm, num_workers=2, chunksize=5, mp_start_method="fork", dest=tmp_path / "a"
    )
    with ThreadPool(1) as pool:
        again = data.preprocess(with_norm, pool=pool, dest=tmp_path / "b")
    assert (made[:] == again[:]).all()
    assert "norm" not in data[:]


def with_noise(rows):
    return rows.set("noise", torch.rand(len(rows)) + (torch.get_num_threads() == 3))


def test_a_generator_seeds_every_call(make, tmp_path):
    data, state = make(), torch.get_rng_state()
    made = [
        data.preprocess(
            with_noise,
            num_workers=workers,
            chunksize=5,
            generator=torch.Generator().manual_seed(seed),
            mp_start_method="fork",
            dest=tmp_path / f"{workers}{seed}",
        )[:]["noise"]
        for workers, seed in [(0, 1), (2, 1), (0, 2)]
    ]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert torch.equal(torch.get_rng_state(), state)
    assert made[0].unique().numel() == 15


def test_calls_in_workers_draw_other_numbers_which_the_caller_can_seed(make, tmp_path):
    data, made = make(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        options = {"num_workers": 3, "chunksize": 5, "mp_start_method": "fork"}
        made.append(
            data.preprocess(with_noise, dest=tmp_path / f"{len(made)}", **options)[:]["noise"]
        )
    assert [one.unique().numel() for one in made] == [15] * 3
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_workers_have_as_many_threads_as_asked(make, tmp_path):
    options = {"num_workers": 1, "mp_start_method": "fork", "dest": tmp_path / "a"}
    noise = make().preprocess(with_noise, worker_threads=3, **options)[:]["noise"]
    assert noise.min() >= 1


def test_calls_have_whole_trajectories(make, tmp_path):
    counts = []
    make().preprocess(
        lambda rows: counts.append(len(rows)) or rows, chunksize=4, dest=tmp_path / "a"
    )
    assert counts == [6, 4, 5]


def test_trajectories_may_change_their_length_or_go(make, tmp_path):
    data = make()
    former = data[:]
    made = data.preprocess(without_first, by="trajectory", dest=tmp_path / "a")
    kept = torch.cat([former[1:6], former[11:]])
    assert (made[:]["next", "observation"] == kept["next", "observation"]).all()


def test_some_frames_go_to_another_place(make, tmp_path):
    assert len(make().preprocess(with_norm, num_frames=8, dest=tmp_path / "a")) == 8


def test_arguments_are_checked(make, tmp_path):
    data = make()
    for options, message in [
        ({"num_frames": 3}, "give a dest"),
        ({"dim": 1}, "dim=1"),
        ({"chunksize": 3, "num_chunks": 3}, "say the same"),
        ({"by": "row"}, "by"),
    ]:
        with pytest.raises(ValueError, match=message):
            data.preprocess(with_norm, **options)
    for name in ("chunksize", "num_chunks", "num_frames", "worker_threads"):
        for wrong in (0, -2):
            with pytest.raises(ValueError, match=f"{name}: expected at least 1, got {wrong}"):
                data.preprocess(with_norm, dest=tmp_path / "dest", **{name: wrong})
    with pytest.raises(TypeError, match=r"num_chunks: expected a whole number, got 1\.5"):
        data.preprocess(with_norm, num_chunks=1.5)
    with pytest.raises(ValueError, match="num_workers: expected at least 0, got -1"):
        data.preprocess(with_norm, num_workers=-1)
    with pytest.raises(ValueError, match=r"made \d+ rows of 15"):
        data.preprocess(lambda rows: rows[:3])
    with pytest.raises(TypeError, match="returns a tensordict, got int"):
        data.preprocess(len)
    with pytest.raises(TypeError, match=r"fn: expected a function of rows.*, got 3 \(int\)"):
        data.preprocess(3, num_workers=2)
    with pytest.raises(ValueError, match="left no row"):
        data.preprocess(lambda rows: None, by="trajectory")
    with pytest.raises(TypeError, match="split_trajs"):
        make(split_trajs=True).preprocess(with_norm)
    assert len(make()) == 15


class ToyWithoutRewards(Toy):
    family = "bare"

    def source(self, path):
        bare = [
            Episode(one.observations, without(one.columns, NEXT_REWARD), one.place, one.number)
            for one in toy_episodes([6, 4, 5])
        ]
        return ListSource(bare)


def without(columns, key):
    return {name: column for name, column in columns.items() if name != key}


def test_rows_without_rewards_are_counted_too(tmp_path):
    data = ToyWithoutRewards("one", root=tmp_path, verbose=False)
    former = data.report
    data.preprocess(with_norm)
    for report in (former, data.report):
        assert (report.steps, report.trajectories, report.terminated) == (15, 3, 3)
        assert (report.lowest_return, report.mean_return, report.highest_return) == (0, 0, 0)
