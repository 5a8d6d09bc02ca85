"""The network between the ranks: measured, emulated, and the collective that suits it."""
