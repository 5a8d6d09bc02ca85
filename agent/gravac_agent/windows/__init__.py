"""The end of each step and window: totals, reports, and the plan of the next step."""
