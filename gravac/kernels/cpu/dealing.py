"""Elements dealt out among ranks: see ``gravac.kernels.dealing``."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit


@jit("void(int32[::1], int64, int64, int32[::1], int64[::1])")
def deal(
    places: NDArray[np.int32], ranks: int, seed: int, order: NDArray[np.int32], counts: NDArray[np.int64]
) -> None:
    """The order that sorts ``places`` by owner, and how many each has (``counts`` zero before)."""
    n, first = np.uint32(ranks), np.uint32(seed)
    owners = np.empty(places.size, dtype=np.uint32)
    for i in range(places.size):
        place = np.uint32(places[i])
        row = place // n
        mixed = np.uint32(np.uint32((row + first) & np.uint32(0x7FFFFFFF)) * np.uint32(0x9E3779B1))
        owners[i] = (place % n + (mixed >> np.uint32(16)) % n) % n
        counts[np.uint64(owners[i])] += 1
    ends = np.empty(ranks, dtype=np.int64)
    total = 0
    for rank in range(ranks):
        ends[rank] = total
        total += counts[rank]
    for i in range(places.size):
        owner = np.uint64(owners[i])
        order[np.uint64(ends[owner])] = i
        ends[owner] += 1


@jit("void(int32[::1], int64, int64, int64, int32[::1])")
def home(rows: NDArray[np.int32], owner: int, ranks: int, seed: int, places: NDArray[np.int32]) -> None:
    """The places of these rows of an owner's share."""
    n, first, mine = np.uint32(ranks), np.uint32(seed), np.uint32(owner)
    for i in range(rows.size):
        row = np.uint32(rows[i])
        mixed = np.uint32(np.uint32((row + first) & np.uint32(0x7FFFFFFF)) * np.uint32(0x9E3779B1))
        places[i] = np.int32(row * n + (mine + n - (mixed >> np.uint32(16)) % n) % n)
