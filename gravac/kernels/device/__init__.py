"""What a device does in few launches, where the host would call several kernels."""
