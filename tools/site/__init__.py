"""The documentation site: the parts of ``make docs`` that are made from the code at build time."""
