"""What needs the laboratory (``lab/``) is skipped, and counted, where that was deleted: the service does without it."""

from collections.abc import Collection
from pathlib import Path

import pytest

HAS_LAB = (Path(__file__).parents[2] / "lab").exists()
NO_LAB = "lab/ is not here"

needs_lab = pytest.mark.skipif(not HAS_LAB, reason=NO_LAB)


def skip_into_lab(names: Collection[str]) -> None:
    """Skip a test that has checked all but these, which lead into the missing laboratory."""
    if names:
        pytest.skip(f"{NO_LAB}: {len(names)} unchecked: {', '.join(sorted(names))}")
