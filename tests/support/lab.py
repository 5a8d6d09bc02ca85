"""Tests that need the laboratory are skipped where it was deleted: the service does without it."""

import importlib.util

import pytest

needs_lab = pytest.mark.skipif(
    importlib.util.find_spec("gravac_lab") is None, reason="needs the laboratory (lab/gravac_lab)"
)
