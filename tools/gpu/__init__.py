"""Checks gravac on a borrowed machine with a GPU and without a network: its packages, its tests, its figures."""
