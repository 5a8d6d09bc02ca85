"""Traces of PyTorch's profiler (Kineto), of any job: what a step waits for, and what to do about it.

``gravac.profile.verdict`` needs torch, for the sizes of payloads. The rest does not.
"""

from gravac.profile.measure import Gradients, Measurement, Row, measure
from gravac.profile.reading import ProfileError
from gravac.profile.trace import RankTrace, read

__all__ = ["Gradients", "Measurement", "ProfileError", "RankTrace", "Row", "measure", "read"]
