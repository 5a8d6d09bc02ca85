"""Helpers of the tests of ranks."""
