"""Programs for people who work on gravac; none of them is installed."""
