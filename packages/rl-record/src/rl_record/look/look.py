"""From rows to their page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rl_record.look.html.page import Page


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
    # the command chooses what of torch is imported before this imports it
    from rl_record.look.source_page import page_of_source

    return page_of_source(source)
