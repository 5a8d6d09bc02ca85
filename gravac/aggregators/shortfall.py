"""How much of what a rank chose really counts as sent, where other ranks have a say in it."""

from math import isfinite, log

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload

_PREFIX = "through/"


def aligned(codec: Compressor, payload: Payload, x: Tensor) -> float:
    """Energy of ``x`` along what a rank is deemed to have sent of it, ⟨C(x), x⟩² / ‖C(x)‖²; not finite if that is
    not."""
    energy, inner = codec.energy(payload), codec.inner(payload, x)
    if not isfinite(energy):
        return energy
    return max(0.0, inner) ** 2 / energy if energy > 0.0 else 0.0


class Shortfall:
    """By bucket and CF, as of the last step that counted: the gate compares gains before anything is sent.

    Under a shared support a rank sends the leader's choice of places, in a reduce-scatter only the largest sums come
    through, in PowerSGD what lies in the column space of the ranks' mean: by its own choice alone a rank would report
    a gain larger than it is.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], float] = {}
        self._drafts: dict[tuple[int, float], float] = {}

    def expected(self, bucket: int, cf: float) -> float:
        """The share of the energy chosen that will count; 1 until known. CFs not sent yet: as at the nearest one."""
        known = {at: share for (number, at), share in self._known.items() if number == bucket}
        if not known:
            return 1.0
        return known[min(known, key=lambda at: (abs(log(at / cf)), at))]

    def learn(self, bucket: int, cf: float, chosen: float, through: float) -> None:
        """Energy of what a rank chose, and how much of it what it is deemed to have sent really holds."""
        if isfinite(through) and isfinite(chosen) and chosen > 0.0:
            self._drafts[bucket, cf] = min(1.0, through / chosen)

    def commit(self) -> None:
        self._known |= self._drafts
        self._drafts.clear()

    def rollback(self) -> None:
        self._drafts.clear()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{_PREFIX}{bucket}/{cf!r}": torch.tensor([share], dtype=torch.float64)
            for (bucket, cf), share in self._known.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take from a state what is for this; returns the rest. Raises ValueError for what cannot be read."""
        self._known, rest = {}, dict[str, Tensor]()
        self._drafts.clear()
        for name, value in state.items():
            if not name.startswith(_PREFIX):
                rest[name] = value
                continue
            try:
                bucket, cf = name.removeprefix(_PREFIX).split("/")
                self._known[int(bucket), float(cf)] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(f"state of {name!r} must be one number of a bucket and a CF") from None
        return rest
