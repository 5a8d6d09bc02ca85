"""Training with several ranks simulated in one process: what plans and policies do to learning and to time."""
