"""The tick of a step whose sums are on a device. It is made, summed and copied back while the host goes on."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gravac.collectives import Communicator, Work
from gravac.kernels import Scalar
from gravac.kernels.device.step_sums import ROW, add_rows
from gravac_agent.devices import Device
from gravac_agent.exchange.tick import FLAGS, NAMES

_NONFINITE = NAMES.index("nonfinite")
_LAST_FLAG = _NONFINITE + len(FLAGS) - 1
_ENDS = 2
"""Numbers behind the tick, for the host: whether the step counts, and ‖mean‖²."""


class DeviceTick:
    """One rank's vectors. Their buffers are used again once the step has been read.

    Args:
        device: Device on which the sums are.
        communicator: The ranks.
    """

    def __init__(self, device: Device, communicator: Communicator) -> None:
        self._device, self._communicator = device, communicator
        self._vectors: dict[int, tuple[Tensor, Tensor]] = {}
        self._arrived: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._places: dict[tuple[int, ...], Tensor] = {}
        self._rows = torch.zeros(0, ROW, dtype=torch.float64, device=device.device)
        self._counts = torch.zeros((), dtype=torch.bool, device=device.device)

    def row(self, number: int) -> Tensor:
        """Return where the sums of a bucket go that are made in one piece, float64 of shape ``(ROW,)``."""
        if number >= len(self._rows):
            more = torch.zeros(2 * number + 8, ROW, dtype=torch.float64, device=self._device.device)
            more[: len(self._rows)] = self._rows
            self._rows = more
        return self._rows[number]

    def forget(self) -> None:
        """Clear the rows of a backward that did not end."""
        self._rows.zero_()

    def sum(self, numbers: Sequence[Scalar]) -> tuple[Tensor, Work]:
        """Make this rank's vector on the device, with all rows in it, and start its sum over ranks.

        If the rank is not finite its energies become 0. NaN among them would hide the flags of all ranks.

        Args:
            numbers: ``TickCodec.numbers``, in which any may be a tensor.

        Returns:
            The vector, float64 of shape ``(len(numbers) + 2,)``, and the all-reduce of all but the last two.
        """
        size = len(numbers)
        if size not in self._vectors:
            vector = torch.zeros(size + _ENDS, dtype=torch.float64, device=self._device.device)
            self._vectors[size] = self._device.pinned(size, torch.float64), vector
        staging, vector = self._vectors[size]
        staging.copy_(
            torch.tensor(
                [0.0 if isinstance(x, Tensor) else x for x in numbers], dtype=torch.float64, device="cpu"
            )
        )
        own = vector[:size]
        own.copy_(staging, non_blocking=True)
        places = tuple(place for place, number in enumerate(numbers) if isinstance(number, Tensor))
        if places:
            known = torch.stack([number for number in numbers if isinstance(number, Tensor)])
            own.index_copy_(0, self._places_of(places), known)
        add_rows(self._rows, vector, len(NAMES), _LAST_FLAG)
        return vector, self._communicator.sum(own)

    def _places_of(self, places: tuple[int, ...]) -> Tensor:
        if places not in self._places:
            self._places[places] = torch.tensor(places, dtype=torch.int64, device="cpu").to(
                self._device.device
            )
        return self._places[places]

    def counts(self, vector: Tensor, fitting: Sequence[Tensor]) -> Tensor:
        """Return whether the step counts, bool of shape ``()``: every rank is finite, and every mean fits its format.

        Args:
            vector: The sum over ranks.
            fitting: Whether each mean fits that may not, equal on all ranks.
        """
        counts = torch.eq(vector[_NONFINITE], 0.0, out=self._counts)
        for one in fitting:
            counts.logical_and_(one)
        return counts

    def end(self, vector: Tensor, counts: Tensor, mean_sq: Scalar | None) -> None:
        """Write what the host also reads behind the tick: whether the step counts, and ‖mean‖²."""
        vector[-_ENDS].copy_(counts)
        if isinstance(mean_sq, Tensor):
            vector[-1].copy_(mean_sq)

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy flat tensors to the host's memory, without waiting.

        The copies are valid when the stream has done what is queued on it so far, and until the next ``release``.
        """
        copies = []
        for tensor in tensors:
            key = tensor.numel(), tensor.dtype
            free = self._arrived.setdefault(key, [])
            copy = free.pop() if free else self._device.pinned(*key)
            copies.append(copy.copy_(tensor, non_blocking=True))
        return copies

    def release(self, copies: Sequence[Tensor]) -> None:
        """Take back the memory of copies that the host has read."""
        for copy in copies:
            self._arrived[copy.numel(), copy.dtype].append(copy)


def factor_of(counts: Tensor) -> Tensor:
    """Return 1 if the step counts, else NaN, float32 of shape ``()``."""
    return torch.where(counts, 1.0, math.nan)
