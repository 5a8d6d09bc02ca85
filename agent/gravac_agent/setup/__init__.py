"""Checking what the agent is attached to, and building its parts."""
