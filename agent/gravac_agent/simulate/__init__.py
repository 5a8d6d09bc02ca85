"""Training with several ranks simulated in one process: what a plan does to learning, apart from any network."""
