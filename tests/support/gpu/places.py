"""Where tests run: on the CPU everywhere, on a GPU where there is one."""

from typing import Any

import pytest

from tools.gpu.launch import Backend, Device

Place = tuple[Device, Backend]
CPU: Place = ("cpu", "gloo")
NCCL: Place = ("cuda", "nccl")
GLOO: Place = ("cuda", "gloo")


def on(*places: Place) -> Any:
    """Parametrize a test by place; those on a GPU are marked ``gpu``."""
    names = {CPU: "cpu", NCCL: "nccl", GLOO: "gloo-cuda"}
    return pytest.mark.parametrize(
        "place",
        [
            pytest.param(place, id=names[place], marks=() if place == CPU else pytest.mark.gpu)
            for place in places
        ],
    )
