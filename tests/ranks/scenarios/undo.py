"""How far a step that does not count moves the residual of a memory in place, against its bound."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gravac.memories import Bucket, BucketMemory, Memory


def on_each_part(memory: Memory, change: Callable[[BucketMemory], None]) -> None:
    """Change every part of a memory, those that are open and those that will be."""
    opened, changed = memory.open, list(memory.parts)

    def changed_part(bucket: Bucket) -> BucketMemory:
        part = opened(bucket)
        if part not in changed:
            changed.append(part)
            change(part)
        return part

    for part in changed:
        change(part)
    memory.open = changed_part  # type: ignore[method-assign]


class Undone:
    """Watches a memory undo steps in place, and compares what it keeps with what it had.

    Made between steps; ``resolve`` of its parts is watched from then on.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._before = memory.state_dict()
        self._allowed: dict[str, Tensor] = {}
        on_each_part(memory, self._watch)

    def _watch(self, part: BucketMemory) -> None:
        part.resolve = partial(self._watched, part, part.resolve)  # type: ignore[method-assign]

    def _watched(
        self,
        part: BucketMemory,
        resolve: Callable[..., Any],
        gradient: Tensor,
        counts: bool | Tensor,
    ) -> None:
        bucket, sent = part.bucket, torch.zeros(gradient.numel())
        if part.sent is not None:
            compressor, payload = part.sent
            sent = compressor.decode(payload)
        for (name, g), (_, s) in zip(bucket.split(gradient), bucket.split(sent), strict=True):
            e = self._before.get(name, torch.zeros_like(g))
            added, removed = e + _finite(g), _finite(s)  # what is not finite is neither added nor sent
            self._allowed[name] = 2.0**-23 * (3.0 * added.abs() + removed.abs())
        resolve(gradient, counts)

    def within_rounding(self) -> bool:
        """Return whether each element is as before: bit for bit, or within the bound where ``resolve`` undid it."""
        after = self._memory.state_dict()
        return self._before.keys() == after.keys() and all(
            bool(((after[name] - was).abs() <= self._allowed.get(name, torch.zeros_like(was))).all())
            for name, was in self._before.items()
        )


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 0.0, 0.0)
