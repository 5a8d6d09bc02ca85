"""The files of the live page and of the documentation page."""
