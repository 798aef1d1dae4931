"""Makes the skeleton importable by its own name."""

from __future__ import annotations

import sys
from pathlib import Path

# The skeleton is no installed package, and --import-mode=importlib adds no test folder to the path.
sys.path.insert(0, str(Path(__file__).parent))
