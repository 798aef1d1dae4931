"""Frames that a dataset keeps as PNG or JPEG."""

from __future__ import annotations

import io

import numpy as np

from rl_tensordict.types import Array


def decode_image(content: bytes) -> Array:
    """An encoded frame, uint8 `[height, width, channels]`."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ImportError(
            "the frames of this dataset are encoded and pillow is not installed: pip install "
            "'rl-datasets[images]'."
        ) from error
    return np.asarray(Image.open(io.BytesIO(content)))
