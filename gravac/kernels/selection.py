"""Elements selected by magnitude: the k largest, or all above a threshold."""

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.backend import on_device
from gravac.kernels.histogram import Tally, count
from gravac.kernels.reference import COARSE_SHIFT
from gravac.kernels.sifting import Sifted

SelectionHint = Tally | Sifted
"""A histogram of a tensor's magnitudes, or candidates for its largest elements: what is known before selecting them."""


def take_top(
    x: Tensor,
    k: int,
    hint: SelectionHint | None = None,
    *,
    clear: bool = False,
    indices: Tensor | None = None,
    values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Select the ``k`` largest ``|x|``, exactly.

    Deterministic: among equal magnitudes the lowest index wins, and NaN counts as larger than infinity.

    Args:
        x: Contiguous float32, shape ``(n,)``.
        k: 1 to n.
        hint: The ``tally`` of ``x``, or of a tensor of which ``x`` is a larger top-k, so that a stronger level can be
            selected from the values of the one before; or k or more candidates that a ``Sifter`` found in ``x``.
            Without a hint, one more pass is made.
        clear: Whether to leave 0 in ``x`` where an element was taken, so that ``x`` becomes the residual.
        indices: Buffer for the positions, int32 of shape ``(k,)``. Fresh memory in every step would cost as much as the
            selection itself.
        values: Buffer for the values, float32 of shape ``(k,)``.

    Returns:
        Positions (int32, ascending) and values.

    Raises:
        ValueError: ``k`` is outside 1..n, a buffer does not fit, or ``hint`` is of another tensor. A GPU does not raise
            the latter: nothing is cleared, and the values are NaN. Other devices do not use the hint.
    """
    n = x.numel()
    if not 0 < k <= n:
        raise ValueError(f"k={k} is outside 1..{n}, the number of elements")
    if n > 2**31 - 1:
        raise ValueError(f"{n} elements do not fit 32-bit positions; use smaller DDP buckets (bucket_cap_mb)")
    indices = torch.empty(k, dtype=torch.int32, device=x.device) if indices is None else indices
    values = torch.empty(k, dtype=torch.float32, device=x.device) if values is None else values
    for name, tensor, dtype, size in (
        ("x", x, torch.float32, n),
        ("indices", indices, torch.int32, k),
        ("values", values, torch.float32, k),
    ):
        if tensor.dtype != dtype or tensor.shape != (size,) or not tensor.is_contiguous():
            raise _unfit(name, tensor, dtype, size)
    if k == n:  # nothing to select, and no bin holds the boundary
        torch.arange(n, out=indices, device=indices.device)
        values.copy_(x)
        if clear:
            x.zero_()
        return indices, values
    host = backend.host if x.is_cpu and indices.is_cpu and values.is_cpu else None
    if host is not None:
        into = indices.data_ptr(), values.data_ptr()
        if isinstance(hint, Sifted):
            places, words = hint.places, hint.values
            if (
                places is not None
                and words is not None
                and host.trim(
                    places.data_ptr(), words.data_ptr(), *into, x.data_ptr(), clear, k, places.numel(), n
                )
            ):
                return indices, values
            hint = None
        boundary, above, within = _boundary(hint.counts if hint else count(x), k)
        room = max(above + within - k, 0)  # for candidates that do not fit the buffers
        more, edge = torch.empty(2 * room, dtype=torch.int32, device="cpu"), boundary << COARSE_SHIFT
        spare = more.data_ptr(), more.data_ptr() + 4 * room
        if boundary < 0 or not host.top(x.data_ptr(), above, edge, clear, *into, *spare, k, room, n):
            raise _other_hint(k)
        return indices, values
    if isinstance(hint, Sifted):
        hint = None
    if backend.on_gpu(x, indices, values):
        from gravac.kernels.cuda.top import top as top_on_gpu

        counts = hint.counts if hint else count(x)
        if counts.device != x.device:
            raise ValueError(f"hint is on {counts.device}, x on {x.device}: both must be on one device")
        top_on_gpu(x.detach(), k, counts, clear, indices, values)
        return indices, values
    if on_device(x):
        found = reference.largest(x.detach(), k)
        torch.index_select(x.detach(), 0, found, out=values)
        indices.copy_(found)
        if clear:
            x.detach().index_fill_(0, found, 0.0)
        return indices, values
    boundary, above, within = _boundary(hint.counts if hint else count(x), k)
    top = None if boundary < 0 else reference.top(x.detach(), k, boundary, above, within)
    if top is None:
        raise _other_hint(k)
    indices.copy_(top)
    torch.index_select(x.detach(), 0, top, out=values)
    if clear:
        x.detach()[top] = 0.0
    return indices, values


def select_top(x: Tensor, k: int) -> Tensor:
    """Return the positions of the ``k`` largest ``|x|`` of a 1-D tensor of any floating dtype, int64; see
    ``take_top``.
    """
    return take_top(x.float().contiguous(), k)[0].long()


def _boundary(counts: Tensor, k: int) -> tuple[int, int, int]:
    """Return the bin of the k-th largest element (-1 if there are fewer), and how many are above it and in it."""
    at_least = counts.flip(0).cumsum(0).flip(0)
    bin_ = int((at_least >= k).sum()) - 1
    within = int(counts[bin_])
    return bin_, int(at_least[bin_]) - within, within


def _unfit(name: str, tensor: Tensor, dtype: torch.dtype, numel: int) -> ValueError:
    return ValueError(
        f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; it must be contiguous, {dtype} of shape ({numel},)"
    )


def _other_hint(k: int) -> ValueError:
    return ValueError(f"hint is of another tensor: the {k} largest elements are not where it says")


def take_top_of_chunks(x: Tensor, k: int, chunks: int) -> tuple[Tensor, Tensor]:
    """Select the largest ``|x|`` of each chunk, ``k`` in all.

    The chunks are equally large, to within an element, and so are their shares of ``k``. If ``k`` is so near n that a
    share is larger than its chunk, all elements are one chunk. Among equal magnitudes the lowest index wins, and NaN
    counts as larger than infinity.

    Args:
        x: Contiguous float32, shape ``(n,)``.
        k: ``chunks`` to n.
        chunks: At least 1.

    Returns:
        Positions (int32, ascending) and values.

    Raises:
        ValueError: ``k`` or ``chunks`` is outside of that, or ``x`` has more elements than 32-bit positions can
            address.
    """
    n = x.numel()
    if not 1 <= chunks <= k <= n:
        raise ValueError(f"k={k} of {n} elements in {chunks} chunks: each chunk must keep 1 element or more")
    if n > 2**31 - 1:
        raise ValueError(f"{n} elements do not fit 32-bit positions; use smaller DDP buckets (bucket_cap_mb)")
    if x.dtype != torch.float32 or x.shape != (n,) or not x.is_contiguous():
        raise _unfit("x", x, torch.float32, n)
    chunks = 1 if _overfull(n, k, chunks) else chunks
    if backend.compiled(x):
        indices, values = (
            torch.empty(k, dtype=torch.int32, device="cpu"),
            torch.empty(k, dtype=torch.float32, device="cpu"),
        )
        backend.host.top_of_chunks(x.data_ptr(), chunks, indices.data_ptr(), values.data_ptr(), k, n)
        return indices, values
    found = reference.top_of_chunks(x.detach(), k, chunks)
    return found.int(), x.detach().index_select(0, found)


def _overfull(n: int, k: int, chunks: int) -> bool:
    """Return whether some chunk's share of ``k`` is larger than the chunk."""
    if -(-k // chunks) <= n // chunks:
        return False
    return any(
        (chunk + 1) * k // chunks - chunk * k // chunks > (chunk + 1) * n // chunks - chunk * n // chunks
        for chunk in range(chunks)
    )


def count_above(x: Tensor, level: float) -> int:
    """Return how many ``|x|`` are at least ``level`` (rounded to float32).

    NaN counts as larger than infinity; a ``level`` that is NaN or below zero lets everything pass.

    Args:
        x: Contiguous float32, shape ``(n,)``.
        level: The threshold.
    """
    edge = _edge(level)
    if backend.compiled(x):
        return backend.host.count_from(x.data_ptr(), 0, x.numel(), edge, x.numel())  # type: ignore[no-any-return]
    return int((reference.magnitudes(x) >= edge).sum())


def take_above(x: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Select the elements of at least magnitude ``level``.

    Args:
        x: Contiguous float32, shape ``(n,)``.
        level: The threshold, as in ``count_above``.

    Returns:
        Positions (int32, ascending) and values, both of shape ``(count_above(x, level),)``.

    Raises:
        ValueError: ``x`` has more elements than 32-bit positions can address.
    """
    if x.numel() > 2**31 - 1:
        raise ValueError(
            f"{x.numel()} elements do not fit 32-bit positions; use smaller DDP buckets (bucket_cap_mb)"
        )
    edge = _edge(level)
    if backend.compiled(x):
        count = count_above(x, level)
        indices, values = (
            torch.empty(count, dtype=torch.int32, device="cpu"),
            torch.empty(count, dtype=torch.float32, device="cpu"),
        )
        backend.host.take_above(x.data_ptr(), edge, indices.data_ptr(), values.data_ptr(), count, x.numel())
        return indices, values
    found = (reference.magnitudes(x) >= edge).nonzero().squeeze(1)
    return found.int(), x.detach()[found]


def _edge(level: float) -> int:
    """Return the lowest magnitude that passes, as the bits of a float32, which order as the numbers do."""
    return int(torch.tensor(level, dtype=torch.float32, device="cpu").view(torch.int32)) if level > 0.0 else 0
