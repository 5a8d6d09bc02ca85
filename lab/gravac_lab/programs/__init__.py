"""Programs that ``gravac bench`` starts: some measure on one core, others are one of several ranks."""
