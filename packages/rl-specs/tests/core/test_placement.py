import pytest
import torch

from rl_specs import Composite, Unbounded
from rl_specs.core.placement import as_device, as_dtype, destination


def test_dtypes_may_be_named():
    assert as_dtype("int8") is as_dtype(torch.int8) is torch.int8
    for wrong in ("float3", 3, "Tensor"):
        with pytest.raises(TypeError, match=r"expected a torch\.dtype"):
            as_dtype(wrong)


def test_dtypes_that_torch_cannot_compare_are_refused():
    for make in (lambda: Unbounded((3,), dtype=torch.uint16), lambda: Unbounded().to(torch.uint64)):
        with pytest.raises(TypeError, match=r"use torch\.int32 or torch\.int64"):
            make()


def test_no_device_means_the_default_one():
    with torch.device("meta"):
        assert as_device(None).type == "meta"
    assert as_device(None) == as_device("cpu")


def test_a_destination_is_a_dtype_or_a_device():
    here = torch.device("cpu")
    assert destination(None, torch.int8, here) == (torch.int8, here)
    assert destination("meta", torch.int8, here) == (torch.int8, torch.device("meta"))
    assert destination(torch.int64, torch.int8, here) == (torch.int64, here)


@pytest.mark.gpu
def test_specs_work_on_a_gpu():
    spec = Composite(obs=Unbounded((3,))).to("cuda")
    assert spec["obs"].device == torch.device("cuda", torch.cuda.current_device())
    assert spec.is_in(spec.rand())
    assert spec.rand().device.type == "cuda"
    assert spec.cpu()["obs"].device.type == "cpu"
