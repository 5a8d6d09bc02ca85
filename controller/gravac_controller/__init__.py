"""Beside rank 0: the controller service and the command line."""
