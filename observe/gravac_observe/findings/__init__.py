"""Judges a measured job, and says what its steps would take elsewhere. It needs torch, for sizes of payloads."""
