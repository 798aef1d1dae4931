from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import CenterCrop, GrayScale, Resize, ToTensorImage


def images(*shape, dtype=torch.float32):
    made = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
    return made.to(dtype) if dtype == torch.uint8 else made.to(dtype) / 255


def changed(change, value, batch=1):
    return change(TensorDict({"pixels": value}, value.shape[:batch]))["pixels"]


@pytest.mark.parametrize("lead", [(), (2,), (2, 5)])
def test_bytes_become_floats_with_channels_first(lead):
    value = images(*lead, 6, 7, 3, dtype=torch.uint8)
    found = changed(ToTensorImage(), value, len(lead))
    assert found.shape == (*lead, 3, 6, 7)
    assert found.movedim(-3, -1).is_contiguous()  # to move floats costs more than all the rest
    assert torch.equal(found[..., 1, 4, 2], value[..., 4, 2, 1] / 255)


def test_floats_are_divided_on_request_only():
    value = images(2, 6, 7, 3)
    assert torch.equal(changed(ToTensorImage(), value), value.movedim(-1, -3))
    assert torch.equal(changed(ToTensorImage(from_int=True), value), value.movedim(-1, -3) / 255)
    half = changed(ToTensorImage(dtype=torch.float16, unsqueeze=True), value)
    assert half.dtype == torch.float16
    assert half.shape == (2, 1, 3, 6, 7)


def test_channels_first_images_are_refused_or_kept():
    value = images(2, 3, 6, 7)
    with pytest.raises(ValueError, match=r"'pixels': expected.*\[2, 3, 6, 7\].*shape_tolerant"):
        changed(ToTensorImage(), value)
    assert torch.equal(changed(ToTensorImage(shape_tolerant=True), value), value)
    with pytest.raises(ValueError, match=r"height, width, channels\]: got \[2, 7\]"):
        changed(ToTensorImage(), images(2, 7))


def test_grey_scale_is_a_weighted_sum_of_channels():
    value = images(2, 3, 4, 5)
    red, green, blue = value.unbind(1)
    wanted = 0.2989 * red + 0.587 * green + 0.114 * blue
    torch.testing.assert_close(changed(GrayScale(), value), wanted.unsqueeze(1))
    whole = changed(GrayScale(), images(2, 3, 4, 5, dtype=torch.uint8))
    assert whole.dtype == torch.uint8
    with pytest.raises(ValueError, match=r"\[..., 3, height, width\]: got \[2, 4, 5, 3\]"):
        changed(GrayScale(), images(2, 4, 5, 3))


def test_resize_keeps_a_linear_ramp_linear():
    ramp = torch.arange(16.0).expand(2, 1, 8, 16)
    found = changed(Resize(8, 4), ramp)
    assert found.shape == (2, 1, 4, 8)
    # each pixel is between two of the old ones; the edges see fewer
    wanted = torch.arange(8.0) * 2 + 0.5
    torch.testing.assert_close(found[0, 0, 0, 1:-1], wanted[1:-1])


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_resize_keeps_a_constant_image_and_its_dtype(interpolation, dtype):
    value = torch.full((2, 3, 3, 6, 9), 7, dtype=dtype)
    found = changed(Resize(5, interpolation=interpolation), value)
    assert found.shape == (2, 3, 3, 5, 5)
    assert found.dtype == dtype
    assert found.float().sub(7).abs().max() < 1e-5


def test_resize_returns_an_image_of_the_target_size_unchanged():
    value = images(2, 3, 4, 5)
    assert changed(Resize(5, 4), value) is value


def test_center_crop_keeps_the_middle():
    value = images(2, 3, 5, 8)
    assert torch.equal(changed(CenterCrop(4, 3), value), value[..., 1:4, 2:6])
    with pytest.raises(ValueError, match="cannot keep 6 x 6 of an image of 5 x 8"):
        changed(CenterCrop(6), value)


@pytest.mark.parametrize(
    "change",
    [
        ToTensorImage(),
        ToTensorImage(unsqueeze=True, dtype=torch.float64),
        GrayScale(["first"]),
        Resize(4, in_keys=["first"]),
        Resize(4, interpolation="bicubic", in_keys=["first"]),
        CenterCrop(3, 2, ["first"]),
    ],
)
def test_image_specs_match_transformed_images(change):
    spec = Composite(
        pixels=Bounded(0, 255, (2, 6, 7, 3), dtype=torch.uint8),
        first=Bounded(0, 1, (2, 3, 6, 7)),
        shape=(2,),
    )
    key = change.in_keys[0]
    described = change.transform_observation_spec(spec)[key]
    for _ in range(20):
        assert described.is_in(change(spec.rand())[key])


def test_specs_of_unknown_sizes_and_bad_settings_are_refused():
    spec = Composite(pixels=Unbounded((-1, 7, 3)))
    with pytest.raises(ValueError, match=r"must be known.*\[-1, 7, 3\]"):
        ToTensorImage().transform_observation_spec(spec)
    with pytest.raises(ValueError, match="w: expected at least 1, got 0"):
        Resize(0)
    with pytest.raises(ValueError, match="'nearest', 'bilinear' or 'bicubic', got 'best'"):
        Resize(3, interpolation="best")
    with pytest.raises(ValueError, match=r"channels, height, width\]: got \[2, 7\]"):
        changed(CenterCrop(3), images(2, 7))


@pytest.mark.parametrize("make", [lambda: Resize(8), lambda: CenterCrop(2)], ids=["resize", "crop"])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_that_come_last_are_refused(make, channels):
    screen = torch.zeros(2, 21, 16, channels, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"whose channels come last. Put ToTensorImage"):
        make().apply_leaf(screen)
    assert make().apply_leaf(screen.movedim(-1, -3)).shape[:2] == (2, channels)


def test_grey_bytes_are_rounded():
    white = torch.full((3, 2, 2), 255, dtype=torch.uint8)
    assert GrayScale().apply_leaf(white).flatten().tolist() == [255] * 4


def test_grey_bytes_are_the_nearest_whole_numbers():
    # 257 shades of each colour are too many for all; shades of two with the third at both ends
    shade = torch.arange(256, dtype=torch.uint8)
    red, green = torch.meshgrid(shade, shade, indexing="ij")
    for blue in (0, 255):
        image = torch.stack([red, green, torch.full_like(red, blue)])
        exact = 2989 * red.long() + 5870 * green.long() + 1140 * blue
        nearest = (exact + 5000) // 10000
        grey = GrayScale().apply_leaf(image)[0].long()
        is_tie = exact % 10000 == 5000  # floats may lie on either side
        assert torch.equal(grey[~is_tie], nearest[~is_tie])
