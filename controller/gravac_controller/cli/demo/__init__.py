"""``gravac demo``: train on this machine and watch."""
