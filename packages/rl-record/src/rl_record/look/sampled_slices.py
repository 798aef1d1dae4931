"""The slices of a sample, as runs of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_record.look.shown_rows import SampledRows
from rl_record.look.trajectories import Trajectories, Whole


@dataclass(frozen=True)
class SampledSlices:
    """Runs of neighbouring steps that a sample holds, in its order."""

    rows: Whole  # int64 [K], the first flat row of each
    lengths: Whole  # int64 [K]
    owners: Whole  # int64 [K], its trajectory; -1 without any
    offsets: Whole  # int64 [K], the steps of the trajectory before it
    num_rows: int  # rows of the sample
    num_distinct: int  # different rows among them

    @property
    def has_runs(self) -> bool:
        """Whether rows were drawn with the steps after them, most of them: a few are by chance."""
        return self.num_rows > 1.5 * len(self.rows)

    @classmethod
    def of(cls, sample: SampledRows, trajectories: Trajectories | None) -> SampledSlices:
        """Find the runs of a sample; with slice ids a run ends with its slice."""
        rows = sample.rows.numpy()
        if trajectories is None:
            owners, places = np.full(len(rows), -1), rows
        else:
            owners, places = trajectories.locate(rows)
        goes_on = (places[1:] == places[:-1] + 1) & (owners[1:] == owners[:-1])
        if sample.slice_ids is not None:
            ids = sample.slice_ids.numpy()
            goes_on &= ids[1:] == ids[:-1]
        heads = np.append(True, ~goes_on).nonzero()[0] if len(rows) else np.zeros(0, np.int64)
        lengths = np.diff(np.append(heads, len(rows)))
        distinct = len(np.unique(rows))
        return cls(rows[heads], lengths, owners[heads], places[heads], len(rows), distinct)
