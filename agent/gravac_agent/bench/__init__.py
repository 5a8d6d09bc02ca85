"""One rank of a benchmark: ``gravac bench train`` starts these, one process a method, host and rank."""
