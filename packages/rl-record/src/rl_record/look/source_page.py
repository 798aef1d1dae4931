"""From rows to their page."""

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


def look(source: TensorDictBase | Any) -> Page:
    """Show the rows of a batch, a buffer or a dump as one page of HTML.

    The page needs no network: trajectories with their ends, what one `sample()` of a buffer draws,
    returns and lengths, range and histogram of every key, frames that play, and the findings of
    `rl_layout.check_layout`, each with a link to its rows. Nothing that is given is changed: a
    buffer gets its sampler and its generator back as they were.

    Of many rows the page holds counts, and evenly spaced ones of them; it says which. It is the
    same for the same rows.

    Args:
        source: a TED tensordict ``[N]`` or ``[*B, T]``; a buffer or an ensemble of rl-replay, whose
            buffers are shown one after another; or a path of a folder: one that `buffer.dumps`
            wrote, of a dataset that rl-datasets converted, or of a `LazyMemmapStorage`.

    Returns:
        The page, which notebooks show, and `save` writes.

    Raises:
        TypeError: it is nothing of these, or a buffer of other objects than rows.
        ValueError: it holds no row, or time is not its last dimension.
        FileNotFoundError: the folder holds no rows.
        ImportError: a path is given and rl-replay is not installed.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> look(trajectories([4, 7, 3]))
        Page('batch [14]', 3 trajectories, no finding)
    """
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
