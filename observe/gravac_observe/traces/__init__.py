"""Traces of PyTorch's profiler (Kineto), of any job: reads what matters of them, in bounded memory."""

from gravac_observe.traces.reading import ProfileError
from gravac_observe.traces.trace import RankTrace, read

__all__ = ["ProfileError", "RankTrace", "read"]
