import torch

from rl_specs import BinaryBox, BoxList, CategoricalBox, ContinuousBox


def test_a_continuous_box_is_a_pair_of_bounds():
    box = ContinuousBox(torch.zeros(3), torch.ones(3))
    low, high = box
    assert torch.equal(low, torch.zeros(3))
    assert torch.equal(high, torch.ones(3))
    assert box == box.clone() != ContinuousBox(torch.zeros(3), torch.ones(3) * 2)
    assert box != 3


def test_a_continuous_box_moves_and_casts():
    box = ContinuousBox(torch.zeros(3), torch.ones(3))
    assert box.to(torch.int8).high.dtype == torch.int8
    assert box.to("meta").low.device.type == "meta"


def test_a_box_list_is_nested_as_its_numbers_are():
    boxes = BoxList.from_nvec(torch.tensor([[2, 3], [4, 5]]))
    assert len(boxes) == 2
    assert list(boxes)[1] == BoxList((CategoricalBox(4), CategoricalBox(5)))


def test_small_boxes_compare_by_value():
    assert BinaryBox(3) == BinaryBox(3) != BinaryBox(4)
    assert CategoricalBox(3) != BinaryBox(3)
