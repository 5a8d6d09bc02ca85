"""Codecs that send a matrix as a few singular vectors."""
