"""Records that the controller answers with, and figures for pages and tables."""
