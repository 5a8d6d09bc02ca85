"""A simulated accelerator: work queued on streams runs later, in an order that a seeded scheduler chooses."""
