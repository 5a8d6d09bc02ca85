"""Traces: the format of a journal, how it is written, and how it is read."""

from gravac.traces.line import Line, TraceError, TraceRecord
from gravac.traces.reader import Trace, read_trace
from gravac.traces.writer import Displaced, TraceWriter

__all__ = ["Displaced", "Line", "Trace", "TraceError", "TraceRecord", "TraceWriter", "read_trace"]
