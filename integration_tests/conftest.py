"""Makes the skeleton and the tools importable by their own names."""

from __future__ import annotations

import sys
from pathlib import Path

# Neither is an installed package, and --import-mode=importlib adds no test folder to the path.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
