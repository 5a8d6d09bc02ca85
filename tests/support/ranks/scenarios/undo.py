"""How far a step that does not count moves the residual of a memory in place, against its bound."""

import torch
from torch import Tensor

from gravac.compressors import Compressor, Payload
from gravac.memories import Bucket, Memory


class Undone:
    """Watches a memory undo steps in place, and compares what it keeps with what it had.

    Made between steps; ``Memory.resolve`` of this memory is watched from then on.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._before = memory.state_dict()
        self._allowed: dict[str, Tensor] = {}
        self._resolve = memory.resolve
        memory.resolve = self._watched  # type: ignore[method-assign]

    def _watched(
        self,
        bucket: Bucket,
        gradient: Tensor,
        counts: bool | Tensor,
        compressor: Compressor | None = None,
        payload: Payload | None = None,
    ) -> None:
        sent = torch.zeros(gradient.numel())
        if compressor is not None and payload is not None:
            sent = compressor.decode(payload)
        pieces = zip(bucket.names, gradient.split(bucket.numels), sent.split(bucket.numels), strict=True)
        for name, g, s in pieces:
            e = self._before.get(name, torch.zeros_like(g))
            added, removed = e + _finite(g), _finite(s)  # what is not finite is neither added nor sent
            self._allowed[name] = 2.0**-23 * (3.0 * added.abs() + removed.abs())
        self._resolve(bucket, gradient, counts, compressor, payload)

    def within_rounding(self) -> bool:
        """Return whether each element is as before: bit for bit, or within the bound where ``resolve`` undid it."""
        after = self._memory.state_dict()
        return self._before.keys() == after.keys() and all(
            bool(((after[name] - was).abs() <= self._allowed.get(name, torch.zeros_like(was))).all())
            for name, was in self._before.items()
        )


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 0.0, 0.0)
