"""Describe a buffer as text."""

from __future__ import annotations

from rl_replay.buffer.parts import Composition


def buffer_lines(buffer: Composition) -> str:
    """Describe a buffer as text."""
    names = [type(one).__name__ for one in buffer.transform]
    transforms = f"transforms {', '.join(names)}" if names else "no transforms"
    parts = f"{buffer.sampler!r}, {buffer.writer!r}, {transforms}"
    lines = [*buffer.storage.explain(), parts]
    return "\n".join([type(buffer).__name__, *(f"  {line}" for line in lines)])
