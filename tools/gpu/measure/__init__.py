"""What ``lab/benchmarks/gpu.py`` measures. Every part also runs on the CPU, in a small size, for tests."""
