"""Follows the trainer's steps, through hooks on the module and the optimizers."""
