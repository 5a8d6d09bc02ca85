"""What is owed, when the number of ranks or the memory itself changes: the rules that keep it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gravac.memories.base import Memory
from gravac.memories.sketchstate import TAG, VELOCITY, check, geometry_of, tag, to_dense, velocities


def reshard(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """What every rank of the new world starts with, from the states of **all** ranks of the old one.

    Ranks average their gradients, so what is owed to the model is the mean residual; giving that mean to each new
    rank conserves it for any new world size. A parameter absent from a state owes nothing there. Sketches are linear:
    the mean of the sketches is the sketch of the mean. Other memories' states mix with each other as residuals. Of
    momentum each gets the mean, too.
    Raises ValueError if ``states`` is empty or a parameter's size differs between states.
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


def convert(old: Memory, new: Memory) -> Memory:
    """``new``, owing what ``old`` owes; between steps. Returns ``new``.

    Residuals are taken over bit for bit, sketches too where the geometry is the same. A sketch becomes the shortest
    residual that has it; a residual becomes its sketch. Momentum is not owed: only ``momentum`` takes it over. Raises
    ValueError when ``new`` can owe nothing and ``old`` does.
    """
    new.load_state_dict(old.state_dict())
    return new
