"""Compiled kernels for the host: one thread, no GIL, no fast-math, the same results as plain torch.

Import a module of this package only where ``gravac.kernels.backend.compiled`` is True: it needs numba.
"""
