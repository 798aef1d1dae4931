"""Which buffers of an ensemble a batch comes from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_replay import RandomSampler, SamplerEnsemble


def chooser(count, seed=0, **options):
    made = SamplerEnsemble(*(RandomSampler() for _ in range(count)), **options)
    made.generator = torch.Generator().manual_seed(seed)
    return made


def test_sample_from_all_names_every_buffer_once():
    assert chooser(3, sample_from_all=True).choose(12, [1, 5, 9]) == ([0, 1, 2], 4)


@given(
    p=st.lists(st.integers(0, 3), min_size=2, max_size=5).filter(any),
    sizes=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_buffers_without_rows_or_chance_are_never_chosen(p, sizes, seed):
    sizes = sizes[: len(p)]
    may_be = {number for number in range(len(p)) if p[number] and sizes[number]}
    sampler = chooser(len(p), seed, p=p, num_buffer_sampled=20)
    if not may_be:
        with pytest.raises(ValueError, match="extend them first"):
            sampler.choose(20, sizes)
        return
    numbers, rows = sampler.choose(20, sizes)
    assert rows == 1
    assert set(numbers) <= may_be


def test_frequencies_follow_p():
    numbers, _ = chooser(3, p=[1.0, 2.0, 5.0], num_buffer_sampled=8000).choose(8000, [1, 1, 1])
    counts = torch.bincount(torch.tensor(numbers), minlength=3)
    expected = torch.tensor([1000.0, 2000.0, 5000.0])
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8  # chi square, 2 dof, 0.001


def test_the_same_seed_chooses_the_same_buffers():
    one, two = chooser(5, 3).choose(50, [1] * 5), chooser(5, 3).choose(50, [1] * 5)
    assert one == two


def test_some_samplers_keep_their_share_of_p():
    some = chooser(4, p=[0.1, 0.2, 0.3, 0.4])[[1, 3]]
    assert some.p.tolist() == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": [1, 1], "sample_from_all": True}, "give one of them"),
        ({"p": [1.0]}, r"p has shape \[1\], and there are 2 buffers"),
        ({"p": [0.0, 0.0]}, "not all 0"),
        ({"p": [-1.0, 2.0]}, "at least 0"),
        ({"p": [float("nan"), 2.0]}, "at least 0"),
        ({"num_buffer_sampled": 0}, "num_buffer_sampled"),
        ({"num_buffer_sampled": 3, "sample_from_all": True}, "draws from 2 buffers"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        chooser(2, **options)


def test_a_batch_that_does_not_divide_is_refused_with_one_that_does():
    with pytest.raises(ValueError, match=r"10 rows does not divide into 3 parts.*ask for 9"):
        chooser(3).choose(10, [1, 1, 1])


def test_sample_from_all_names_the_buffers_that_are_empty():
    with pytest.raises(ValueError, match=r"and \[1\] have no rows yet"):
        chooser(3, sample_from_all=True).choose(9, [1, 0, 1])


def test_an_ensemble_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one member"):
        SamplerEnsemble()
