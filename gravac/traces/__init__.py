"""Traces: writing, reading, sealing, upgrading and replaying the journal of a job."""
