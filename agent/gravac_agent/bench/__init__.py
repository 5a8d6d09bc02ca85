"""What ``gravac bench`` starts: programs that measure on one core, and programs that are one rank of several."""
