"""State that outlives a step: checkpoints, buckets of a resumed run, learning rates, changes of codec."""
