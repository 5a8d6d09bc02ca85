"""``gravac bench``: measure on this machine."""
