"""State that outlives a step: checkpoints, regrouped buckets, changed rates, changed codecs."""
