"""Optimizers that know how long each element of the gradient waits: torch's, and an age per element."""

from gravac.optim.adam import Adam, AdamW

__all__ = ["Adam", "AdamW"]
