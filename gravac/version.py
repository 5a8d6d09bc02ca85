"""The version of gravac. A file without imports, so that the packages above need not import their public face."""

__version__ = "0.1.0"
