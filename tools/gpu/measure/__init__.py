"""What ``benchmarks/cuda.py`` measures. Every part also runs on the CPU, in a small size, so that tests can run it."""
