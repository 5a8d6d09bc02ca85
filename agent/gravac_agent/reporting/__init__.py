"""Reporting windows and getting decisions: in process, or from a controller over HTTP."""
