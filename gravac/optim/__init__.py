"""Optimizers that know when an element of the gradient last arrived: torch's, and an age per element."""

from gravac.optim.adam import Adam, AdamW

__all__ = ["Adam", "AdamW"]
