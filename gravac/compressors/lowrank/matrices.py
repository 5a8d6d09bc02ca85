"""A flat tensor as the matrices it is made of: which are worth a low rank, and of which rank."""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices of one shape, processed as a batch.

    Args:
        rows: Rows of each matrix.
        columns: Columns of each matrix.
        rank: Rank of the factors.
        offsets: Where each matrix begins in the flat tensor.
        numbers: Which of the tensors they are.
    """

    rows: int
    columns: int
    rank: int
    offsets: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def factor_numel(self) -> int:
        """Elements of both factors of all matrices."""
        return len(self.offsets) * self.rank * (self.rows + self.columns)

    def stack(self, flat: Tensor) -> Tensor:
        """Return the matrices as float32 of shape ``(count, rows, columns)``; a copy."""
        size = self.rows * self.columns
        pieces = [flat[offset : offset + size] for offset in self.offsets]
        return torch.stack(pieces).float().view(-1, self.rows, self.columns)

    def add(self, matrices: Tensor, out: Tensor, scale: float) -> None:
        """Add matrices to a flat tensor at their positions: ``out += scale · matrices``."""
        for offset, matrix in zip(self.offsets, matrices, strict=True):
            out[offset : offset + matrix.numel()].add_(matrix.flatten().to(out.dtype), alpha=scale)


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """How a flat tensor is sent: groups of matrices as factors, and ranges ``(offset, length)`` as they are."""

    groups: tuple[Group, ...]
    dense: tuple[tuple[int, int], ...]

    @property
    def dense_numel(self) -> int:
        """Elements sent as they are."""
        return sum(length for _, length in self.dense)

    def gather_dense(self, flat: Tensor) -> Tensor:
        """Return the elements that are sent as they are, shape ``(dense_numel,)``; a copy."""
        pieces = [flat[offset : offset + length] for offset, length in self.dense]
        return torch.cat(pieces) if pieces else flat.new_empty(0)

    def add_dense(self, values: Tensor, out: Tensor, scale: float) -> None:
        """Add values to a flat tensor at the ranges sent as they are: ``out += scale · values``."""
        pieces = torch.split(values, [length for _, length in self.dense])
        for (offset, length), piece in zip(self.dense, pieces, strict=True):
            out[offset : offset + length].add_(piece.to(out.dtype), alpha=scale)


@lru_cache(maxsize=4096)
def geometry(
    shapes: tuple[tuple[int, ...], ...], cf: float, saving: float = 1.0, fixed: int | None = None
) -> MatrixLayout:
    """Choose what of a flat tensor is sent as factors.

    Matrices are ``shape[0] × the rest``. Tensors of fewer than two dimensions, and those whose factors would not be
    more than ``saving`` times smaller, are sent as they are.

    Args:
        shapes: Shapes of the tensors, in order.
        cf: The CF asked for; the rank is the largest that reaches it, at least 1.
        saving: How many times smaller factors must be.
        fixed: A fixed rank instead of the one that ``cf`` asks for.
    """
    groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    dense: list[tuple[int, int]] = []
    offsets = accumulate((math.prod(shape) for shape in shapes), initial=0)
    for number, (offset, shape) in enumerate(zip(offsets, shapes, strict=False)):
        size = math.prod(shape)
        if len(shape) > 1 and size:
            rows, columns = shape[0], size // shape[0]
            rank = min(rows, columns, fixed or max(1, int(size / (cf * (rows + columns)))))
            if rank * (rows + columns) * saving < size:
                groups.setdefault((rows, columns, rank), []).append((number, offset))
                continue
        dense.append((offset, size))
    return MatrixLayout(
        tuple(
            Group(*form, tuple(offset for _, offset in found), tuple(number for number, _ in found))
            for form, found in groups.items()
        ),
        tuple(dense),
    )


def square(numel: int) -> tuple[int, int]:
    """Return the two factors of ``numel`` that are nearest to each other.

    They are the shape of the matrix that stands for a flat tensor of unknown shape.
    """
    rows = next(rows for rows in range(math.isqrt(numel), 0, -1) if numel % rows == 0)
    return rows, numel // rows
