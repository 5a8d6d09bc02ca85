"""FSDP2: models that ``torch.distributed.fsdp.fully_shard`` has sharded."""
