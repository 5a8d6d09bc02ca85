"""A sketch as a state of plain tensors, and any state as residuals: what lets memories follow one another.

A sketch's state carries its geometry under ``TAG``, as JSON in a uint8 tensor. Without a tag a state holds residuals.
Momentum, which is kept but not owed, stands beside them under ``VELOCITY`` and the parameter's name.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.memories.rowsketch import RowSketch

TAG = "::memory"
VELOCITY = "::velocity/"


class Geometry(NamedTuple):
    """What must be equal for two sketches to add. ``numels``: elements of each parameter."""

    size: float
    block: int
    seed: int
    numels: dict[str, int]

    def sketcher(self) -> RowSketch:
        return RowSketch(self.size, self.block, self.seed)

    def same(self, other: "Geometry") -> bool:
        return (self.size, self.block, self.seed) == (other.size, other.block, other.seed)


def tag(geometry: Geometry) -> Tensor:
    """The geometry as a tensor."""
    return torch.frombuffer(bytearray(json.dumps(geometry._asdict()).encode()), dtype=torch.uint8)


def geometry_of(state: Mapping[str, Tensor]) -> Geometry | None:
    """None for residuals. Raises ValueError for a tag that cannot be read."""
    found = state.get(TAG)
    if found is None:
        return None
    try:
        geometry = Geometry(**json.loads(bytes(found.tolist())))
        geometry.sketcher()
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{TAG!r} of this memory's state cannot be read: {error}") from None
    return geometry


def check(state: Mapping[str, Tensor]) -> None:
    """Raises ValueError for anything but 1-D float tensors, and for sketches of another size than they say."""
    for name, value in state.items():
        if name != TAG and (
            not isinstance(value, Tensor) or value.dim() != 1 or not value.is_floating_point()
        ):
            raise ValueError(f"residual of {name!r} must be a 1-D float tensor, got {value!r:.80}")
    geometry = geometry_of(state)
    if geometry is None:
        return
    sketcher = geometry.sketcher()
    for name, value in state.items():
        if name == TAG:
            continue
        rows, _, width = sketcher.shape(geometry.numels[name]) if name in geometry.numels else (0, 0, 0)
        if value.numel() != rows * width:
            raise ValueError(f"sketch of {name!r} has {value.numel()} elements, its tag says {rows * width}")


def to_dense(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Residual per parameter name; a sketch gives the shortest that has it. Raises ValueError as ``check``."""
    check(state)
    geometry = geometry_of(state)
    if geometry is None:
        return {name: value for name, value in state.items() if not name.startswith(VELOCITY)}
    sketcher = geometry.sketcher()
    return {
        name: sketcher.settle(value.float(), geometry.numels[name]).clone()
        for name, value in state.items()
        if name != TAG
    }


def velocities(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Momentum per parameter name; empty for states of memories that have none."""
    return {name.removeprefix(VELOCITY): value for name, value in state.items() if name.startswith(VELOCITY)}
