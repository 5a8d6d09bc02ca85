"""Fuzzers: of the REST API and of trace files."""
