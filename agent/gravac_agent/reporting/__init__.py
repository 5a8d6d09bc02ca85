"""Reporting to a controller: the queue of unacknowledged records, HTTP, and starting a controller."""
