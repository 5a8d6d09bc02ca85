"""States of error memories as plain tensors: checked, made dense, and resharded between world sizes.

The state of a sketch carries its geometry under ``TAG``, as JSON in a uint8 tensor. A state without a tag holds
residuals. Momentum, which is no residual, is stored under ``VELOCITY`` and the parameter's name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.memories.rowsketch import RowSketch

TAG = "::memory"
VELOCITY = "::velocity/"


class SketchShape(NamedTuple):
    """The geometry of a sketch. Two sketches add if it is equal, apart from ``numels``, the elements by parameter."""

    size: float
    block: int
    seed: int
    numels: dict[str, int]

    def sketcher(self) -> RowSketch:
        """Return the encoder and decoder of this geometry."""
        return RowSketch(self.size, self.block, self.seed)

    def same(self, other: "SketchShape") -> bool:
        """Return whether sketches of both geometries add."""
        return (self.size, self.block, self.seed) == (other.size, other.block, other.seed)


def parameter_of(key: str) -> str:
    """Return the name of the parameter that a key of a state belongs to."""
    return key.removeprefix(VELOCITY)


def tag(geometry: SketchShape) -> Tensor:
    """Return the geometry as a tensor."""
    return torch.frombuffer(bytearray(json.dumps(geometry._asdict()).encode()), dtype=torch.uint8)


def geometry_of(state: Mapping[str, Tensor]) -> SketchShape | None:
    """Return the geometry of a sketch's state; None for residuals. Raise ValueError if its tag cannot be read."""
    found = state.get(TAG)
    if found is None:
        return None
    try:
        geometry = SketchShape(**json.loads(bytes(found.tolist())))
        geometry.sketcher()
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{TAG!r} of this memory's state cannot be read: {error}") from None
    return geometry


def check(state: Mapping[str, Tensor]) -> None:
    """Check a state.

    Raises:
        ValueError: A value is not a 1-D float tensor, or a sketch does not have the size that its tag says.
    """
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
    """Return the residual by parameter name; for a sketch, the shortest residual that has it. Raise as ``check``."""
    check(state)
    geometry = geometry_of(state)
    if geometry is None:
        return {name: value for name, value in state.items() if not name.startswith(VELOCITY)}
    sketcher = geometry.sketcher()
    return {
        name: sketcher.least_norm(value.float(), geometry.numels[name]).clone()
        for name, value in state.items()
        if name != TAG
    }


def velocities(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the momentum by parameter name; empty for states of memories without one."""
    return {name.removeprefix(VELOCITY): value for name, value in state.items() if name.startswith(VELOCITY)}


def reshard(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the state that every rank of the new world starts with.

    Ranks average their gradients, so the model's residual is the mean over ranks. Giving that mean to each new rank
    conserves it for any new world size. A parameter absent from a state has no residual there. Sketches are linear: the
    mean of the sketches is the sketch of the mean. States of different memories mix as residuals. Momentum is averaged
    too.

    Args:
        states: The states of **all** ranks of the old world.

    Raises:
        ValueError: ``states`` is empty, or a parameter's size differs between states.
    """
    if not states:
        raise ValueError("states is empty: pass the residual states of all ranks of the old world")
    found = [geometry_of(state) for state in states]
    first = next((geometry for geometry in found if geometry is not None), None)
    linear = first is not None and all(
        (geometry is not None and geometry.same(first)) or not state
        for geometry, state in zip(found, states, strict=True)
    )
    total: dict[str, Tensor] = {}
    for state in states:
        if linear:
            check(state)
        moving = {VELOCITY + name: value for name, value in velocities(state).items()}
        for name, value in (state if linear else to_dense(state) | moving).items():
            if name == TAG:
                continue
            if name in total and total[name].shape != value.shape:
                raise ValueError(
                    f"residual of {name!r} has {value.numel()} and {total[name].numel()} elements in two states"
                )
            total[name] = total[name] + value.double() if name in total else value.double()
    mean = {name: (value / len(states)).to(torch.float32) for name, value in total.items()}
    if linear and first is not None:
        numels = {
            name: n for geometry in found if geometry is not None for name, n in geometry.numels.items()
        }
        mean[TAG] = tag(first._replace(numels=numels))
    return mean
