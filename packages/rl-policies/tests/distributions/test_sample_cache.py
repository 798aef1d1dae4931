import torch

from rl_policies.distributions.sample_cache import SampleCache


def test_only_the_very_tensor_is_known():
    value = torch.zeros(3)
    drawn = SampleCache(value, 7)
    assert drawn.holds(value)
    assert not drawn.holds(value[:])
    assert not drawn.holds(value.clone())


def test_a_value_that_was_written_to_is_not_known():
    value = torch.zeros(3)
    drawn = SampleCache(value, 7)
    value[1] = 2
    assert not drawn.holds(value)


def test_compiled_code_knows_its_value():
    @torch.compile(backend="eager", fullgraph=True)
    def draw(x):
        value = x + 1
        return value if SampleCache(value, x).holds(value) else x

    assert (draw(torch.zeros(3)) == 1).all()
