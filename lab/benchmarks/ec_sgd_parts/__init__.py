"""Parts of ``lab/benchmarks/ec_sgd.py``."""
