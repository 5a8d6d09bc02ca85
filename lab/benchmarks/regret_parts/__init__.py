"""Parts of ``lab/benchmarks/regret.py``."""
