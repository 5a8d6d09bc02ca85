"""The data path of a step: DDP's hook, the exchange thread, encoding, and agreement between ranks."""
