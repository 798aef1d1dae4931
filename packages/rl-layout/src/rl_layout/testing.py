"""Synthetic trajectories, and hypothesis strategies over them, for tests of what reads layouts.

The strategies `flat_batches`, `batches` and `plain_batches` need hypothesis, as in
``pip install 'rl-layout[testing]'``, and are imported when they are asked for. All else does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_layout.extras import import_with_hypothesis
from rl_layout.segments.end_kind import EndKind
from rl_layout.segments.segments import Segments
from rl_layout.synthetic import environments, ted, trajectories

if TYPE_CHECKING:
    from rl_layout.strategies import batches, flat_batches, plain_batches

__all__ = [
    "EndKind",
    "batches",
    "check_segments",
    "environments",
    "flat_batches",
    "plain_batches",
    "ted",
    "trajectories",
]


def check_segments(segments: Segments) -> None:
    """Assert the invariants of segments: not empty, in order, apart, each in one row of the batch.

    Args:
        segments: int64 starts and lengths ``[S]`` of any batch ``[*B, T]``.

    Raises:
        AssertionError: an invariant does not hold.

    Example:
        >>> check_segments(Segments.of(trajectories([2, 3])))
    """
    starts, lengths = segments.starts, segments.lengths
    assert starts.shape == lengths.shape == segments.kinds.shape  # one of each per segment
    assert bool((lengths >= 1).all())  # no segment is empty
    assert bool((starts[1:] >= (starts + lengths)[:-1]).all())  # in order, no overlap
    assert not len(segments) or int(segments.lasts[-1]) < segments.num_rows  # inside the batch
    steps = segments.batch_shape[-1]
    assert bool((starts // steps == segments.lasts // steps).all())  # within one row of [B, T]


def __getattr__(name: str) -> Any:
    """Import a strategy when it is asked for."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}: there are {', '.join(__all__)}."
        raise AttributeError(msg)
    what = f"rl_layout.testing.{name} is a hypothesis strategy"
    instead = "use the builders of rl_layout.synthetic"
    return getattr(import_with_hypothesis("rl_layout.strategies", what, instead), name)
