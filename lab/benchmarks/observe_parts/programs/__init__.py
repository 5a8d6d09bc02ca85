"""Training programs of all kinds, each for torchrun."""
