"""Parts of ``lab/benchmarks/load.py``."""
