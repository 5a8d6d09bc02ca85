"""The exchange on a device: queued on streams, without threads."""
