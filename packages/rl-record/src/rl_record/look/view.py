"""Everything that a page says of rows, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from rl_record.look.film import Film, films_of
from rl_record.look.findings import Findings
from rl_record.look.leaf_summary import LeafSummary, summarise
from rl_record.look.shown_rows import SampledRows, ShownRows
from rl_record.look.trajectories import Trajectories

KEYS = 200


@dataclass(frozen=True)
class View:
    """What is known of rows."""

    title: str  # what holds them
    num_rows: int  # how many there are, padding included
    findings: Findings  # of `rl_layout.check_layout`
    trajectories: Trajectories | None  # none if no marker tells them apart
    problem: str  # why there are no trajectories
    leaves: list[LeafSummary]  # the summary of each leaf, of the first 200
    left_out: int  # how many leaves have none
    films: list[Film]  # of the leaves that hold frames
    sample: SampledRows | None  # what one sample of a buffer drew

    @classmethod
    def of(cls, rows: ShownRows) -> View:
        """Read rows, whose last dimension is time."""
        findings = Findings.of(rows)
        found, problem = None, ""
        try:
            found = Trajectories.of(rows.batch)
        except (KeyError, TypeError, ValueError) as error:
            problem = str(error.args[0]) if error.args else str(error)
        return cls(
            rows.title,
            rows.batch.batch_size.numel(),
            findings,
            found,
            problem,
            [summarise(rows, leaf) for leaf in rows.leaves[:KEYS]],
            max(0, len(rows.leaves) - KEYS),
            films_of(rows, found),
            rows.sample,
        )
