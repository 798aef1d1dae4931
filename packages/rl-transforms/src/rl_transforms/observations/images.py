"""Images: channels first, smaller, grey."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rl_specs import TensorSpec
from rl_tensordict import CPU
from rl_tensordict.arguments import check_choice, check_type, check_whole
from rl_transforms.described import described, without_bounds
from rl_transforms.transform import Keys, Transform

PIXELS = ["pixels"]
MOST_CHANNELS = 4
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LUMINANCE = (0.2989, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
HALF = torch.tensor(0.5, device=CPU)
Interpolation = Literal["nearest", "bilinear", "bicubic"]


class ImageTransform(Transform):
    """A change of images ``[*B, C, H, W]``.

    Args:
        in_keys: images; ``["pixels"]`` by default.
        out_keys: what to call them; the same by default.

    Example:
        >>> ImageTransform().in_keys
        ['pixels']
    """

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        super().__init__(PIXELS if in_keys is None else in_keys, out_keys)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a changed image."""
        return described(spec, self.apply_leaf)


class ToTensorImage(ImageTransform):
    """Puts channels first, and scales integers to [0, 1]: ``[*B, H, W, C]`` to ``[*B, C, H, W]``.

    Integers become floats whatever their layout is: bytes of a stack of frames that
    `shape_tolerant` leaves in place take four times the memory. To keep them as bytes, store them
    so, and put this after what samples them.

    What comes out is a view: in memory the channels of a pixel stay side by side, which is torch's
    `channels_last`. Call `contiguous` where that matters.

    Args:
        from_int: divide by 255; None for integers only.
        unsqueeze: add a dimension of size 1 in front of the channels.
        dtype: of the result; torch's default float by default, or that of an image of floats.
        in_keys: images; ``["pixels"]`` by default.
        out_keys: what to call them; the same by default.
        shape_tolerant: leave the dimensions of an image that has its channels first already.

    Example:
        >>> from tensordict import TensorDict
        >>> pixels = torch.full((3, 5, 7, 3), 255, dtype=torch.uint8)
        >>> image = ToTensorImage()(TensorDict({"pixels": pixels}, [3]))["pixels"]
        >>> image.shape, float(image.max())
        (torch.Size([3, 3, 5, 7]), 1.0)
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Keys = None,
        out_keys: Keys = None,
        shape_tolerant: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.from_int, self.unsqueeze, self.dtype = from_int, unsqueeze, dtype
        self.shape_tolerant = shape_tolerant

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Change one image.

        Raises:
            ValueError: it has no height, width and channels, or has its channels first.
        """
        if value.ndim < 3:
            msg = f"expected an image [..., height, width, channels]: got {list(value.shape)}."
            raise ValueError(msg)
        # an image has few channels: [..., 3, 84, 84] has them first, [..., 84, 84, 3] last
        is_first = value.shape[-1] > MOST_CHANNELS >= value.shape[-3]
        if is_first and not self.shape_tolerant:
            msg = (
                f"expected an image [..., height, width, channels], got {list(value.shape)}, which "
                "has its channels first. Pass shape_tolerant=True to leave it so."
            )
            raise ValueError(msg)
        whole = not value.is_floating_point()
        if whole if self.from_int is None else self.from_int:
            # in place on the new floats of integers; floats belong to the caller
            image = value.to(torch.get_default_dtype()).div_(255) if whole else value.div(255)
        else:
            image = value
        image = image.to(self.dtype or (torch.get_default_dtype() if whole else value.dtype))
        # a view: to move the floats in memory would cost more than all the rest
        image = image if is_first else image.movedim(-1, -3)
        return image.unsqueeze(-4) if self.unsqueeze else image


class GrayScale(ImageTransform):
    """Makes images grey: 0.2989 red + 0.587 green + 0.114 blue, one channel.

    Args:
        in_keys: images ``[*B, 3, H, W]``; ``["pixels"]`` by default.
        out_keys: what to call them; the same by default.

    Example:
        >>> from tensordict import TensorDict
        >>> grey = GrayScale()(TensorDict({"pixels": torch.ones(2, 3, 5, 7)}, [2]))["pixels"]
        >>> grey.shape, round(float(grey.max()), 4)
        (torch.Size([2, 1, 5, 7]), 0.9999)
    """

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Change one image.

        Raises:
            ValueError: it has not three channels.
        """
        if value.ndim < 3 or value.shape[-3] != 3:
            msg = (
                f"expected an image [..., 3, height, width]: got {list(value.shape)}. Put "
                "ToTensorImage in front where channels come last."
            )
            raise ValueError(msg)
        is_bytes = value.dtype is torch.uint8
        as_is = is_bytes or value.is_floating_point()
        red, green, blue = (value if as_is else value.to(torch.get_default_dtype())).unbind(-3)
        # [..., H, W] each, summed in place in the one new tensor; a cast to bytes drops fractions,
        # so that a half that is added rounds, without passes to round and to clamp
        grey = torch.add(HALF, red, alpha=LUMINANCE[0]) if is_bytes else red * LUMINANCE[0]
        grey = grey.add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
        return (grey.to(torch.uint8) if is_bytes else _back(grey, value.dtype)).unsqueeze(-3)


class Resize(ImageTransform):
    """Scales images to a size, smoothed before they shrink.

    Args:
        w: width, or height and width where `h` is not given.
        h: height.
        interpolation: ``"nearest"``, ``"bilinear"`` or ``"bicubic"``.
        in_keys: images ``[*B, C, H, W]``; ``["pixels"]`` by default.
        out_keys: what to call them; the same by default.

    Raises:
        ValueError: a size below 1, or another interpolation.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"pixels": torch.ones(2, 3, 8, 8)}, [2])
        >>> Resize(4, 5)(batch)["pixels"].shape
        torch.Size([2, 3, 5, 4])
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        interpolation: Interpolation = "bilinear",
        in_keys: Keys = None,
        out_keys: Keys = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w, self.h = _sizes(w, h)
        check_type("interpolation", interpolation, str, "a name")
        check_choice("interpolation", interpolation, ("nearest", "bilinear", "bicubic"))
        self.interpolation = interpolation

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Change one image.

        Raises:
            ValueError: it has no channels, or they come last.
        """
        _image_sizes(value)
        if value.shape[-2:] == (self.h, self.w):
            return value
        smooth = self.interpolation != "nearest"
        # interpolate takes one batch dimension: [*B, C, H, W] -> [R, C, H, W]
        images = value.reshape(-1, *value.shape[-3:])
        # dtypes that interpolate takes as they are; bytes on a CPU only
        native = images.is_floating_point() or (images.dtype == torch.uint8 and images.is_cpu)
        found = interpolate(
            images if native else images.float(),
            (self.h, self.w),
            mode=self.interpolation,
            antialias=smooth,
            **({"align_corners": False} if smooth else {}),
        )
        return _back(found, value.dtype).reshape(*value.shape[:-2], self.h, self.w)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a scaled image; bicubic ones may pass the bounds of floats."""
        # the overshoot of whole numbers is clamped to their dtype in _back
        passes = self.interpolation == "bicubic" and spec.dtype in FLOATS
        return (without_bounds if passes else described)(spec, self.apply_leaf)


class CenterCrop(ImageTransform):
    """Keeps the middle of images.

    Args:
        w: width, or height and width where `h` is not given.
        h: height.
        in_keys: images ``[*B, C, H, W]``; ``["pixels"]`` by default.
        out_keys: what to call them; the same by default.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"pixels": torch.arange(25.0).reshape(1, 1, 5, 5)}, [1])
        >>> CenterCrop(1, 3)(batch)["pixels"].flatten()
        tensor([ 7., 12., 17.])
    """

    def __init__(
        self, w: int, h: int | None = None, in_keys: Keys = None, out_keys: Keys = None
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w, self.h = _sizes(w, h)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Change one image.

        Raises:
            ValueError: it is smaller than what is to be kept.
        """
        height, width = _image_sizes(value)
        if height < self.h or width < self.w:
            msg = f"cannot keep {self.h} x {self.w} of an image of {height} x {width}."
            raise ValueError(msg)
        top, left = (height - self.h) // 2, (width - self.w) // 2
        return value[..., top : top + self.h, left : left + self.w]


def _sizes(w: int, h: int | None) -> tuple[int, int]:
    height = w if h is None else h
    check_whole("w", w, 1)
    check_whole("h", height, 1)
    return w, height


def _image_sizes(value: Tensor) -> tuple[int, int]:
    if value.ndim < 3:
        msg = f"expected an image [..., channels, height, width]: got {list(value.shape)}."
        raise ValueError(msg)
    channels, height, width = value.shape[-3:]
    if width in (1, 3) and min(channels, height) > 4:
        msg = (
            f"expected an image [..., channels, height, width]: got {list(value.shape)}, whose "
            "channels come last. Put ToTensorImage in front, or move them: value.movedim(-1, -3)."
        )
        raise ValueError(msg)
    return height, width


def _back(value: Tensor, dtype: torch.dtype) -> Tensor:
    if value.dtype == dtype:
        return value
    limits = torch.iinfo(dtype)
    return value.round().clamp(limits.min, limits.max).to(dtype)
