"""Traces: reading and writing them, following a journal, replaying it, and deciding it again by another rule."""

from gravac.traces.line import Line, TraceError, TraceRecord
from gravac.traces.reader import Trace, read_trace
from gravac.traces.writer import Displaced, TraceWriter

__all__ = ["Displaced", "Line", "Trace", "TraceError", "TraceRecord", "TraceWriter", "read_trace"]
