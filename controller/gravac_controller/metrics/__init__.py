"""Prometheus metrics: their definitions, and what a scrape answers."""
