"""What is wrong with a batch, as a list that can be read and raised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from rl_tensordict import NestedKey


class LayoutError(ValueError):
    """A batch breaks the contract on data; the message holds the whole report.

    Example:
        >>> issubclass(LayoutError, ValueError)
        True
    """


@dataclass(frozen=True)
class Finding:
    """One thing that `check_layout` found.

    Attributes:
        severity: ``"error"`` where the contract is broken, ``"note"`` where data is right but
            perhaps not as intended.
        key: the key that shows it.
        row: index of the first row in the batch, one number per batch dimension; empty where
            the whole leaf is meant.
        count: number of rows.
        message: what was expected and what to do.

    Example:
        >>> Finding("note", "is_init", (3,), 1, "starts in mid-trajectory").severity
        'note'
    """

    severity: Literal["error", "note"]
    key: NestedKey
    row: tuple[int, ...]
    count: int
    message: str


@dataclass(frozen=True)
class LayoutReport:
    """All findings of one batch; prints as a table.

    Attributes:
        batch_shape: ``[N]`` or ``[*B, T]``.
        findings: errors first.

    Example:
        >>> print(LayoutReport(torch.Size([5]), []))
        layout of [5]: no finding
    """

    batch_shape: torch.Size
    findings: Sequence[Finding]

    @property
    def errors(self) -> list[Finding]:
        """Findings that break the contract."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def notes(self) -> list[Finding]:
        """Findings worth a look."""
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def ok(self) -> bool:
        """Whether nothing breaks the contract."""
        return not self.errors

    def raise_if_broken(self) -> LayoutReport:
        """Raise the report if there is an error.

        Returns:
            The report itself if there is none.

        Raises:
            LayoutError: at least one finding is an error.

        Example:
            >>> LayoutReport(torch.Size([5]), []).raise_if_broken().ok
            True
        """
        if self.errors:
            raise LayoutError(str(self))
        return self

    def __str__(self) -> str:
        head = f"layout of {list(self.batch_shape)}: "
        if not self.findings:
            return head + "no finding"
        table = [("", "key", "first row", "rows", "what")]
        for finding in self.findings:
            row = ", ".join(map(str, finding.row)) or "-"
            name = finding.key if isinstance(finding.key, str) else " . ".join(finding.key)
            table.append((finding.severity, name, row, str(finding.count), finding.message))
        widths = [max(len(line[column]) for line in table) for column in range(4)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[4]])
            for line in table
        ]
        counts = f"{_counted(self.errors, 'error')}, {_counted(self.notes, 'note')}"
        return f"{head}{counts}\n" + "\n".join(lines)


def _counted(findings: Sequence[Finding], noun: str) -> str:
    return f"{len(findings)} {noun}{'s' * (len(findings) != 1)}"
