"""Benchmarks: programs on one core, ranks side by side, and hosts on an emulated network of namespaces."""
