import torch

from rl_policies.distributions.sample_cache import SampleCache


def test_holds_recognises_the_sample_itself_only():
    value = torch.zeros(3)
    drawn = SampleCache(value, 7)
    assert drawn.holds(value)
    assert not drawn.holds(value[:])
    assert not drawn.holds(value.clone())


def test_holds_rejects_a_sample_changed_in_place():
    value = torch.zeros(3)
    drawn = SampleCache(value, 7)
    value[1] = 2
    assert not drawn.holds(value)


def test_holds_works_in_compiled_code():
    @torch.compile(backend="eager", fullgraph=True)
    def draw(x):
        value = x + 1
        return value if SampleCache(value, x).holds(value) else x

    assert (draw(torch.zeros(3)) == 1).all()
