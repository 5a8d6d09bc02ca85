"""gravac in training frameworks: a callback each. A framework is imported only when its module is used.

``lightning.GravacCallback`` is for Lightning's Trainer, ``transformers.GravacCallback`` for Hugging Face's. Accelerate
and Ray Train need none: ``Agent`` takes what they prepare.
"""

import importlib

_FRAMEWORKS = ("lightning", "transformers")


def __getattr__(name: str) -> object:
    """Import a framework's module at its first use (PEP 562)."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module 'gravac_agent.integrations' has no attribute {name!r}")
    return importlib.import_module(f"gravac_agent.integrations.{name}")
