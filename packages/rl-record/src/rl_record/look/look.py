"""From rows to their page."""

from __future__ import annotations

import os
from typing import Any

from tensordict import TensorDictBase, is_tensor_collection

from rl_record.look.dump import read_dump_rows
from rl_record.look.html.page import Page
from rl_record.look.html.sections import page_of
from rl_record.look.shown_batch import ShownBatch
from rl_record.look.shown_buffer import ShownBuffer, is_buffer
from rl_record.look.shown_rows import ShownRows
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
        source: a TED tensordict ``[N]`` or ``[*B, T]``; a buffer of rl-replay; or a path of a
            folder that `buffer.dumps` wrote.

    Returns:
        The page, which notebooks show, and `save` writes.

    Raises:
        TypeError: it is nothing of these, or a buffer of other objects than rows.
        ValueError: it holds no row, or time is not its last dimension.
        FileNotFoundError: there is no dump.
        ImportError: a path is given and rl-replay is not installed.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> look(trajectories([4, 7, 3]))
        Page('batch [14]', 3 trajectories, no finding)
    """
    return page_of(View.of(_rows_of(source)))


def _rows_of(source: Any) -> ShownRows:
    if isinstance(source, str | os.PathLike):
        return read_dump_rows(source)
    if is_tensor_collection(source):
        return ShownBatch(source)
    if is_buffer(source):
        return ShownBuffer(source)
    msg = f"source: expected a tensordict, a buffer or a path of a dump, got {shown(source)}."
    raise TypeError(msg)
