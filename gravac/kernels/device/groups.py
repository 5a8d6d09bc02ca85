"""Buckets whose work on a device takes one launch together."""

MEMBERS = 4
"""Buckets of a group at most."""
