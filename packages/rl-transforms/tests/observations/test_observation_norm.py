from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_specs import Bounded, Composite
from rl_transforms import ObservationNorm


def test_inverse_undoes_the_scaling_in_both_conventions():
    batch = TensorDict({"a": torch.tensor([[3.0, 10.0]])}, [1])
    loc, scale = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    for standard, wanted in ((True, [1.0, 2.0]), (False, [7.0, 42.0])):
        norm = ObservationNorm(loc, scale, ["a"], in_keys_inv=["a"], standard_normal=standard)
        assert norm(batch)["a"].flatten().tolist() == wanted
        assert (norm.inv(norm(batch)) == batch).all()


@pytest.mark.parametrize("standard", [True, False])
def test_statistics_are_those_of_real_rows(standard):
    batch = TensorDict({"observation": torch.randn(5, 40, 3) * 4 + 2}, [5, 40])
    mask = torch.rand(5, 40) < 0.7
    batch["collector", "mask"] = mask
    batch["observation"][~mask] = torch.nan
    norm = ObservationNorm(standard_normal=standard)
    norm.init_stats(batch)
    seen = norm(batch)["observation"][mask]
    torch.testing.assert_close(seen.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0), torch.ones(3))


def test_statistics_are_in_the_state_dict():
    norm, other = ObservationNorm(standard_normal=True), ObservationNorm(standard_normal=True)
    norm.init_stats(trajectories([30]))
    other.load_state_dict(norm.state_dict())
    batch = trajectories([7])
    assert (norm(batch) == other(batch)).all()
    assert ObservationNorm().state_dict() == {}


def test_specs_are_scaled_by_the_statistics():
    spec = Composite(observation=Bounded(0, 8, (2, 2)), shape=(2,))
    norm = ObservationNorm(torch.tensor(4.0), torch.tensor(2.0), standard_normal=True)
    found = norm.transform_observation_spec(spec)["observation"].space
    assert (found.low.unique(), found.high.unique()) == (-2, 2)
    unknown = ObservationNorm().transform_observation_spec(spec)["observation"]
    assert unknown.is_in(torch.full((2, 2), 100.0))


def test_constant_observation_is_divided_by_eps():
    norm = ObservationNorm(standard_normal=True)
    norm.init_stats(TensorDict({"observation": torch.ones(4, 1)}, [4]))
    assert norm(TensorDict({"observation": torch.ones(4, 1)}, [4]))["observation"].abs().max() == 0


def test_missing_or_impossible_statistics_are_refused():
    batch = trajectories([3])
    with pytest.raises(RuntimeError, match="no statistics yet: call init_stats"):
        ObservationNorm()(batch)
    with pytest.raises(ValueError, match="both of loc and scale"):
        ObservationNorm(loc=1.0)
    with pytest.raises(ValueError, match=r"of which leaf.*\['a', 'b'\]"):
        ObservationNorm(in_keys=["a", "b"]).init_stats(batch)
    with pytest.raises(KeyError, match="'a' is missing"):
        ObservationNorm(in_keys=["a"]).init_stats(batch)
    with pytest.raises(ValueError, match="two rows, all finite: got 1"):
        ObservationNorm().init_stats(batch[:1])
    norm = ObservationNorm()
    norm.init_stats(batch)
    with pytest.raises(RuntimeError, match="statistics already"):
        norm.init_stats(batch)


def test_statistics_over_dimensions_of_a_leaf():
    rows = torch.randn(50, 4, 3, 5) * 2 + 1
    batch = TensorDict({"pixels": rows}, [50])
    norm = ObservationNorm(in_keys=["pixels"], standard_normal=True)
    norm.init_stats(batch, reduce_dim=[-1, -2, -4], cat_dim=-4, keep_dims=[-1, -2])
    assert norm.loc.shape == (4, 1, 1)
    torch.testing.assert_close(norm.loc.flatten(), rows.mean((0, 2, 3)))
    torch.testing.assert_close(norm.scale.flatten(), rows.std((0, 2, 3)))
    flat = ObservationNorm(in_keys=["pixels"], standard_normal=True)
    flat.init_stats(batch, reduce_dim=(0, 3))
    torch.testing.assert_close(flat.loc, rows.mean((0, 3)))


def test_a_number_of_steps_needs_an_environment():
    with pytest.raises(RuntimeError, match=r"init_stats\(50\) plays steps of the environment"):
        ObservationNorm().init_stats(50)
    with pytest.raises(TypeError, match=r"got 'observation', .*by key="):
        ObservationNorm().init_stats(trajectories([3]), "observation")
    assert not ObservationNorm().initialized


@pytest.mark.parametrize(("given", "named"), [((), "neither"), ((5,), "both")])
def test_steps_to_play_have_one_name(given, named):
    other = {"num_iter": 5} if given else {}
    with pytest.raises(TypeError, match=f"as batch, or .* as num_iter: got {named}"):
        ObservationNorm().init_stats(*given, **other)
