"""Parts of ``benchmarks/ec_sgd.py``."""
