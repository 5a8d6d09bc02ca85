"""Runs the application: socket, bounds on connections, and an orderly shutdown."""
