"""``gravac export``: a trace as a table."""
