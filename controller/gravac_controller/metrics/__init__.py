"""Prometheus metrics: what there is, and how a scrape is made of the jobs."""
