"""Kernels for NVIDIA GPUs, in Triton: the same results as plain torch, and nothing that waits for the device.

All sizes are known beforehand; counts and thresholds stay on the device. What elsewhere raises an error, because it
looked at the data, here leaves NaN behind instead, which the step's own check for non-finite numbers finds. Import a
module of this package only where ``gravac.kernels.backend.on_gpu`` says so: it needs Triton.
"""
