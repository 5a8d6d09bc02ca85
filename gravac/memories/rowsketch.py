"""A count sketch per parameter with one hash: fixed for the whole run, the same on all ranks, and cheap.

The flat parameter is cut into rows of D elements, all hashed alike: a permutation of the row, modulo w = ceil(size · D)
buckets, with random signs. Such a hash is *balanced*: a bucket holds floor(D/w) or ceil(D/w) elements. Independent
hashing puts 19 into the fullest bucket where 10 are expected, and diverges. One hash beats several at equal memory.
Parameters of at most one row (biases, norms) are stored as they are, as the authors do: they weigh little and cost as
much time.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class _Hash(NamedTuple):
    """The hash of a row of D elements. ``order``: elements by bucket, each padded with element 0 and sign 0.

    Stored in small types and widened for use: a model has a table for each length of row.
    """

    order: Tensor  # int16, (c · w,): element at place j of bucket b is order[j · w + b]
    order_signs: Tensor  # int8, (c · w,)
    bucket: Tensor  # int16, (D,)
    signs: Tensor  # int8, (D,)


class RowSketch:
    """Encoder and decoder. Linear: the sketches of two vectors add up to the sketch of their sum.

    Args:
        size: Floats stored per element, above 0 to 1.
        block: Longest row, in elements.
        seed: Seed of the hash.
    """

    def __init__(self, size: float, block: int, seed: int) -> None:
        self.size, self.block, self.seed = size, block, seed
        self._hashes: dict[tuple[int, torch.device], _Hash] = {}
        self._shapes: dict[int, tuple[int, int, int]] = {}

    def shape(self, numel: int) -> tuple[int, int, int]:
        """Return rows, elements per row D and buckets per row w for a parameter of ``numel`` elements.

        Rows need no padding if a length in (block/2, block] divides it.
        """
        if not numel:
            return 0, 1, 1
        if numel not in self._shapes:
            block = range(min(self.block, numel), self.block // 2, -1)
            length = next((d for d in block if numel % d == 0), 0) or -(-numel // -(-numel // self.block))
            width = length if numel <= self.block else max(1, _ceil(self.size * length))
            self._shapes[numel] = -(-numel // length), length, width
        return self._shapes[numel]

    def encode(self, x: Tensor) -> Tensor:
        """Return the sketch of ``x``, float32 of shape ``(rows · w,)``."""
        rows, length, width = self.shape(x.numel())
        if width == length:
            return torch.nn.functional.pad(x, (0, rows * length - x.numel())).clone()
        table = self._hash(length, width, x.device)
        short = rows * length - x.numel()
        grid = (torch.nn.functional.pad(x, (0, short)) if short else x).view(rows, length)
        # Gathering in bucket order and adding up, not index_add: the same sums in the same order on every device.
        placed = grid.index_select(1, table.order.int()).mul_(table.order_signs.float())
        return placed.view(rows, -1, width).sum(1).flatten()

    def decode(self, sketch: Tensor, numel: int) -> Tensor:
        """Return the unbiased estimate (over hashes) of what was sketched, shape ``(numel,)``; may be a view of
        the sketch.
        """
        rows, length, width = self.shape(numel)
        if width == length:
            return sketch[:numel]
        table = self._hash(length, width, sketch.device)
        estimate = sketch.view(rows, width).index_select(1, table.bucket.int()).mul_(table.signs.float())
        return estimate.flatten()[:numel]

    def least_norm(self, sketch: Tensor, numel: int) -> Tensor:
        """Return the shortest vector with this sketch, shape ``(numel,)``: the estimate divided by each bucket's load.

        It is what repeated dense steps would send of the sketch in total, whatever β is. May be a view of the sketch.
        """
        rows, length, width = self.shape(numel)
        if width == length:
            return sketch[:numel]
        table = self._hash(length, width, sketch.device)
        loads = table.order_signs.view(-1, width).abs().sum(0).expand(rows, width)
        short = rows * length - numel
        if short:  # places beyond the end hold nothing
            loads = loads.clone()
            loads[-1] -= torch.bincount(table.bucket[length - short :].int(), minlength=width)
        return self.decode((sketch.view(rows, width) / loads.clamp(min=1).float()).flatten(), numel)

    def nbytes(self) -> int:
        """Return the bytes of the hash tables."""
        return sum(part.nbytes for table in self._hashes.values() for part in table)

    def _hash(self, length: int, width: int, device: torch.device) -> _Hash:
        table = self._hashes.get((length, device))
        if table is None:
            table = self._hashes[length, device] = _Hash(
                *(part.to(device) for part in _draw(length, width, self.seed))
            )
        return table


def fullest(size: float) -> int:
    """Return the most elements that a bucket of a sketch of ``size`` floats per element holds, for any parameter."""
    return _ceil(1.0 / size)


def _draw(length: int, width: int, seed: int) -> _Hash:
    generator = torch.Generator().manual_seed(seed)  # CPU on purpose: the same hash on ranks of any device
    permutation = torch.randperm(length, generator=generator, device="cpu")
    signs = (torch.randint(2, (length,), generator=generator, device="cpu") * 2 - 1).to(torch.int8)
    fill = -length % width
    order = torch.nn.functional.pad(permutation, (0, fill))
    order_signs = torch.nn.functional.pad(signs[permutation], (0, fill))
    bucket = torch.empty(length, dtype=torch.int16, device="cpu")
    bucket[permutation] = (torch.arange(length, dtype=torch.int64, device="cpu") % width).to(torch.int16)
    return _Hash(order.to(torch.int16), order_signs, bucket, signs)


def _ceil(value: float) -> int:
    """Return the smallest integer at or above ``value``, apart from rounding: 0.1 · 30 gives 3, not 4."""
    return math.ceil(value - 1e-6)
