"""Traces: reading and writing them, following a journal, replaying it, and deciding it again by another rule."""

from gravac.traces.line import TraceError
from gravac.traces.trace import read as read_trace

__all__ = ["TraceError", "read_trace"]
