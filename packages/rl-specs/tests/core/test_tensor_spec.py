import pytest
import torch

from rl_specs import Binary, Bounded, Composite, OneHot, TensorSpec, Unbounded
from rl_specs.core import tensor_spec


def test_every_family_is_a_tensor_spec():
    assert all(isinstance(spec, TensorSpec) for spec in (Binary(3), Unbounded(), Composite()))


def test_synonyms_do_the_same():
    spec = Bounded(1, 1, (3,))
    assert torch.equal(spec.sample((5,)), spec.rand((5,)))
    assert spec.contains(spec.sample())
    assert torch.equal(spec.ones(), torch.ones(3))
    assert torch.equal(spec.zeros(), torch.zeros(3))


def test_rand_takes_one_number_as_a_size():
    assert Unbounded((3,)).rand(5).shape == (5, 3)
    assert Unbounded((3,)).rand(0).shape == (0, 3)


def test_ndim_counts_dimensions():
    spec = Unbounded((5, 3))
    assert spec.ndim == spec.ndimension() == 2


def test_type_check_names_the_key():
    Unbounded((3,)).type_check(torch.zeros(7))
    with pytest.raises(TypeError, match=r"expected dtype torch.float32 for 'obs': got torch.int64"):
        Unbounded((3,)).type_check(torch.zeros(3, dtype=torch.int64), "obs")
    with pytest.raises(TypeError, match="got None"):
        Unbounded((3,)).type_check(3)


def test_make_neg_dim_makes_one_dimension_dynamic():
    spec = Bounded(torch.tensor([0.0, 1.0]).expand(5, 2), 2)
    assert spec.make_neg_dim(0) is spec
    assert spec.shape == (-1, 2)
    assert spec.is_in(spec.rand((7,)))
    assert spec.is_in(torch.ones(9, 2))


def test_make_neg_dim_refuses_what_varies():
    with pytest.raises(ValueError, match="_low varies along it"):
        Bounded(torch.tensor([0.0, 1.0]), 2).make_neg_dim(0)


def test_unsupported_calls_say_what_to_do_instead():
    for call in (
        lambda: Unbounded().enumerate(),
        lambda: Unbounded().cardinality(),
        lambda: Bounded(0, 1, (3,)).index(0, torch.zeros(3)),
    ):
        with pytest.raises(NotImplementedError, match=r"cannot .*: "):
            call()


def test_encode_checks_the_domain_where_the_environment_says_so(monkeypatch):
    spec = Bounded(0, 1, (3,))
    assert spec.encode([0, 5, 0]).tolist() == [0, 5, 0]
    monkeypatch.setattr(tensor_spec, "CHECK_SPEC_ENCODE", True)
    with pytest.raises(AssertionError, match="not every value is in"):
        spec.encode([0, 5, 0])
    with pytest.raises(AssertionError):
        spec.to_numpy(torch.full((3,), 5.0))


def test_to_numpy_checks_where_asked():
    with pytest.raises(AssertionError, match="expected shape"):
        OneHot(3).to_numpy(torch.zeros(7, dtype=torch.bool), safe=True)


def test_a_leaf_keeps_its_device_and_caches_nothing():
    spec = Unbounded()
    spec.memoize_encode()
    spec.erase_memoize_cache()
    assert spec.clear_device_().device == torch.device("cpu")
    assert spec.cpu() is spec
