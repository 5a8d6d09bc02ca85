"""Elements dealt out among ranks: whose each is, and where it lies in its owner's share.

A row is as many neighbours as there are ranks, and each rank owns one of them: element ``p`` is in row ``p // ranks``,
of the owner ``(p + turn(row)) % ranks``. ``turn`` is Fibonacci hashing of the row (Knuth, The Art of Computer
Programming, volume 3, 6.4), so that what is close together, or evenly spaced, is dealt out about evenly.
"""

import torch
from torch import Tensor

from gravac.kernels import backend, reference


def deal(places: Tensor, ranks: int, seed: int) -> tuple[Tensor, Tensor]:
    """Places (int32, ascending, shape ``(k,)``) sorted by owner: the order that does it (int32, shape ``(k,)``), in
    which each owner's stay ascending, and how many each has (int64, on the host, shape ``(ranks,)``).

    ``seed`` 0 to 2^31 - 1 gives another deal.
    """
    if backend.compiled(places):
        from gravac.kernels.cpu.dealing import deal as compiled

        order, counts = torch.empty_like(places), torch.zeros(ranks, dtype=torch.int64)
        compiled(places.numpy(), ranks, seed, order.numpy(), counts.numpy())
        return order, counts
    return reference.deal(places, ranks, seed)


def home(rows: Tensor, owner: int, ranks: int, seed: int) -> Tensor:
    """Where in the whole the elements of these rows (int32) of an owner's share are (int32): the inverse."""
    if backend.compiled(rows):
        from gravac.kernels.cpu.dealing import home as compiled

        places = torch.empty_like(rows)
        compiled(rows.numpy(), owner, ranks, seed, places.numpy())
        return places
    return reference.home(rows, owner, ranks, seed)
