"""Exact Top-k: sends the k elements of largest magnitude."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, kept_count, to_wire
from gravac.compressors.sparse.selector import PLAIN, Indexed
from gravac.kernels import SelectionHint, Sifted, take_top
from gravac.kernels.device.tiled import Values as TiledValues
from gravac.offers import Offer


class TopK(Indexed):
    """Sends the k = floor(n / CF) elements of largest magnitude, exactly.

    k values, and their positions in at most 2 + log2(CF) bits each. For float32 that is a wire CF of 8.6 at CF 10 and
    728 at CF 1000; with 16-bit values (``topk+bf16``) 15.1 and 1,145.

    Biased, contractive: ``||x - C(x)||² <= (1 - k/n) ||x||²``, never worse than Random-k.
    """

    name = "topk"
    source = "Stich et al. 2018, Sparsified SGD with memory, definition 2.2"
    traits = PLAIN
    uses_histogram = True
    offer = Offer(
        encode_ns=1.5,
        decode_ns=0.3,
        kept_ns=(10.0, 4.0),
        sgd={
            10.0: (0.897, 0.958, 1.000),
            25.0: (0.784, 0.879, 1.000),
            100.0: (0.672, 0.725, 0.996),
        },
        adam={
            10.0: (0.769, 0.876, 0.985),
            25.0: (0.597, 0.764, 0.946),
            100.0: (0.381, 0.563, 0.739),
        },
        stacks={
            "bf16": Offer(strengths=(10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 1000.0), like="topk"),
            "twobit": Offer(
                sgd={6.0: (0.717, 0.910, 0.995), 12.0: (0.801, 0.889, 1.000)},
                adam={6.0: (0.781, 0.852, 0.901), 12.0: (0.729, 0.828, 0.887)},
                late_strengths=(5.1, 16.6, 36.0),
                aged={5.1: (0.968, 0.994, 1.000), 16.6: (0.968, 0.994, 1.000), 36.0: (0.968, 0.994, 1.000)},
                low_beta={5.1: (0.872, 0.948, 1.000), 16.6: (0.837, 0.921, 1.000)},
            ),
        },
    )

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return self.levels(x, (cf,), key, dtype)[0]

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        # One histogram serves all levels, and each selects from the values of the one before.
        numel, taken, payloads = x.numel(), x.float().contiguous(), []
        support: Tensor | None = None
        for cf in cfs:
            places, taken = take_top(taken, kept_count(numel, cf), hint)
            support = places if support is None else support.index_select(0, places)
            hint = None if isinstance(hint, Sifted) else hint  # candidates are places in x, not in ``taken``
            values = taken if dtype == torch.float32 else to_wire(taken, dtype)
            payloads.append(self._payload(values, support, numel, cf, key))
        return payloads

    def message_values(self, dtype: torch.dtype) -> TiledValues | None:
        ways: dict[torch.dtype, TiledValues] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
        return ways.get(dtype)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=kept_count(numel, cf) / numel)


class TrimmedTopK(TopK):
    """RedSync's trimmed Top-k: the same elements as Top-k, ties included.

    The paper lowers the threshold from the maximum in fifths until k elements pass, and takes the Top-k of those. That
    is exactly Top-k, so it is computed in the same, faster way.
    """

    name = "redsync-trimmed"
    source = "Fang et al. 2019, RedSync, trimmed top-k"
