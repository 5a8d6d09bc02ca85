"""The tests. What they share is in ``tests.support``."""
