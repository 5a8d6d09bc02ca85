"""A codec as an aggregator: a payload of another size than declared is never sent."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gravac.aggregators import OneShot
from gravac.collectives import ALONE
from gravac.compressors import Key, Payload, TopK
from gravac.kernels import SelectionHint
from tests.support.maths.aggregator_checks import (
    BUCKETS,
)


class Short(TopK):
    """Makes payloads without their last byte of positions."""

    name = "short"

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return self.levels(x, (cf,), key, dtype)[0]

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        made = super().levels(x, cfs, key, dtype, hint)
        return [replace(payload, parts=(payload.parts[0], payload.parts[1][:-1])) for payload in made]


def test_a_payload_of_another_size_than_declared_is_never_sent() -> None:
    """Other ranks would wait for the missing bytes, or abort. The error says whose bytes are wrong."""
    one = BUCKETS[0]
    n = sum(one.numels)
    declared = TopK().wire_bytes(n, 4.0, torch.float32)
    aggregator = OneShot(Short(), ALONE)
    message = (
        f"compressor='short' made a payload of {declared - 1} bytes, but declares {declared} bytes for {n} "
    )
    with pytest.raises(ValueError, match=message):
        aggregator.open(one).prepare(torch.randn(n), (4.0,), Key(3, 0, 0, 0), torch.float32)
    OneShot(TopK(), ALONE).open(one).prepare(torch.randn(n), (4.0,), Key(3, 0, 0, 0), torch.float32)
