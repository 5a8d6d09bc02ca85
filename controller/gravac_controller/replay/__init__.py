"""Jobs read from trace files, and the live page for them."""
