"""The page of whatever holds rows."""

from __future__ import annotations

import os
from typing import Any

from tensordict import TensorDictBase, is_tensor_collection

from rl_record.look.folder import read_folder
from rl_record.look.html.members import page_of_members
from rl_record.look.html.page import Page
from rl_record.look.html.sections import page_of
from rl_record.look.shown_batch import ShownBatch
from rl_record.look.shown_buffer import ShownBuffer, is_buffer, is_ensemble
from rl_record.look.view import View
from rl_tensordict.arguments import shown


def page_of_source(source: TensorDictBase | Any) -> Page:
    """The page of a batch, a buffer, an ensemble or a folder; see `look`."""
    if isinstance(source, str | os.PathLike):
        return _page_of_buffer(*read_folder(source))
    if is_tensor_collection(source):
        return page_of(View.of(ShownBatch(source)))
    if is_buffer(source):
        return _page_of_buffer(source, "ensemble" if is_ensemble(source) else "buffer")
    msg = f"source: expected a tensordict, a buffer or a path of a dump, got {shown(source)}."
    raise TypeError(msg)


def _page_of_buffer(buffer: Any, title: str) -> Page:
    if not is_ensemble(buffer):
        return page_of(View.of(ShownBuffer(buffer, title)))
    members, size = list(buffer), buffer.batch_size
    if not any(map(len, members)):
        msg = f"expected rows: the {len(members)} buffers of this ensemble are empty."
        raise ValueError(msg)
    size = size and size // buffer.sampler.num_buffer_sampled
    pages = [
        page_of(View.of(ShownBuffer(member, f"buffer {number}", size))) if len(member) else None
        for number, member in enumerate(members)
    ]
    return page_of_members(f"{title} of {len(members)} buffers, {type(buffer).__name__}", pages)
