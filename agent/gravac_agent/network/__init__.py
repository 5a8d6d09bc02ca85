"""The network between the ranks: measured, emulated, metered, and checked for a loopback address."""
