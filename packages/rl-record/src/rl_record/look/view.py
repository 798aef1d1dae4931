"""Everything that a page says of rows, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from rl_record.look.film import Film, films_of
from rl_record.look.findings import Findings
from rl_record.look.leaf_summary import LeafSummary, summarise
from rl_record.look.rows import Rows, SampledRows
from rl_record.look.trajectories import Trajectories

KEYS = 200


@dataclass(frozen=True)
class View:
    """What is known of rows.

    Attributes:
        title: what holds them.
        num_rows: how many there are, padding included.
        findings: of `rl_layout.check_layout`.
        trajectories: None where no marker tells them apart.
        problem: why there are no trajectories.
        leaves: the summary of each leaf, of the first 200.
        left_out: how many leaves have none.
        films: of the leaves that hold frames.
        sample: what one sample of a buffer drew.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from rl_record.look.batch_rows import BatchRows
        >>> View.of(BatchRows(trajectories([2, 3]))).num_rows
        5
    """

    title: str
    num_rows: int
    findings: Findings
    trajectories: Trajectories | None
    problem: str
    leaves: list[LeafSummary]
    left_out: int
    films: list[Film]
    sample: SampledRows | None

    @classmethod
    def of(cls, rows: Rows) -> View:
        """Read rows.

        Raises:
            ValueError: time is not the last dimension.
        """
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
