"""What ``lab/benchmarks/cuda.py`` measures. Every part also runs on the CPU, in a small size, for tests."""
