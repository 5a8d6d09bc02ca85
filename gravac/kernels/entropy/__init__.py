"""Entropy coding: frequent numbers take fewer bits."""
