"""Trains ``examples/elastic.py`` under torchrun while ranks are killed, added and taken away, and checks the result."""
