"""One launch for several buckets: a table on the device says where each one's tensors are, and which programs it has.

The table, int64, begins with a line for each kind of launch: the first program of each member. A row for each member
follows, of addresses and numbers.
"""

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.build import jit
from gravac.kernels.reference import MEMBERS

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.int16, torch.float16: tl.float16}
"""How floats are read: bfloat16 as bits, see ``blocks.raw``."""
_BEYOND = 1 << 62
"""Where a member begins that there is not."""
_MEMBERS = tl.constexpr(MEMBERS)


def table_of(
    programs: Sequence[Sequence[int]], rows: Sequence[Sequence[Tensor | int]], device: torch.device
) -> Tensor:
    """Make a table.

    Args:
        programs: For each kind of launch, the programs of each member.
        rows: Rows of each member; tensors stand for their addresses, and have to live as long as the table is used.
        device: Device of the tensors.

    Returns:
        int64.
    """
    numbers: list[int] = []
    for line in programs:
        begins = [sum(line[:member]) for member in range(len(line))]
        numbers += begins + [_BEYOND] * (MEMBERS - len(line))
    for row in rows:
        numbers += [one.data_ptr() if isinstance(one, Tensor) else one for one in row]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu").to(device, non_blocking=True)


def in_runs(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether all tensors begin at multiples of 16 bytes, so that they can be read as many at a time."""
    return not any(one.data_ptr() % 16 for one in tensors if one is not None)


@jit()
def member_of(begins: tl.tensor) -> tl.tensor:
    """Returns whose part this program works on, by the line of its launch."""
    first = tl.load(begins + tl.arange(0, _MEMBERS))
    return tl.sum((first <= tl.program_id(0)).to(tl.int32)) - 1


@jit()
def part_of(begins: tl.tensor, member: tl.tensor) -> tl.tensor:
    """Returns which of its member's parts this program works on."""
    return tl.program_id(0) - tl.load(begins + member).to(tl.int32)


@jit()
def row_of(table: tl.tensor, member: tl.tensor, LINES: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Returns where the member's row begins in a table of so many lines and columns."""
    return table + LINES * _MEMBERS + member * COLUMNS


@jit()
def tensor_at(cell: tl.tensor, DTYPE: tl.constexpr, RUNS: tl.constexpr) -> tl.tensor:
    """Returns where the tensor is whose address a cell holds; with RUNS, it begins at a multiple of 16 bytes."""
    address = tl.load(cell).to(tl.pointer_type(DTYPE))
    if RUNS:
        address = tl.multiple_of(address, 16)
    return address


@jit()
def number_at(cell: tl.tensor) -> tl.tensor:
    """Returns a number of at most 31 bits."""
    return tl.load(cell).to(tl.int32)
