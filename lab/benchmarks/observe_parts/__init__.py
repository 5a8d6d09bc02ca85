"""What ``observe.py`` runs: training programs, their turns, and the network that is none."""
