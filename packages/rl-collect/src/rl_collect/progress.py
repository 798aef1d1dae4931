"""A progress bar for a collection under way."""

from __future__ import annotations

from typing import Any


class Progress:
    """Shows steps, their rate, episodes and their mean return; does nothing if disabled."""

    def __init__(self, total_frames: int, *, is_shown: bool) -> None:
        self._total, self._is_shown = total_frames, is_shown
        self._bar: Any = None

    def add(self, frames: int, episodes: int, mean_return: float, lag: float = 0.0) -> None:
        """Count a batch."""
        if not self._is_shown:
            return
        if self._bar is None:
            from tqdm.auto import tqdm  # only where a bar is shown

            total = None if self._total == -1 else self._total
            self._bar = tqdm(total=total, unit="step", unit_scale=True, smoothing=0.1)
        figures = {"episodes": str(episodes), "return": f"{mean_return:.1f}"}
        self._bar.set_postfix(figures | ({"lag": f"{lag:.1f}"} if lag else {}), refresh=False)
        self._bar.update(frames)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
