"""Measuring on a slow network: hosts that are network namespaces, links shaped by ``tc``, real training on them."""
