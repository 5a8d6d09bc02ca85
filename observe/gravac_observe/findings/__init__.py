"""Judges a measured job, and says what its steps would take elsewhere. Needs torch, for sizes of payloads."""
