"""gravac: the mathematics of adaptive gradient compression. No sockets, no clocks, no files but traces."""

__version__ = "0.1.0"
__all__ = ["__version__"]
