"""What ``gravac doctor --device`` asks: the coding times of plans on this machine, without a job."""

import json
import math
import sys
from typing import Any

import torch

from gravac import kernels
from gravac.protocol import PlanCost
from gravac_agent.devices.cuda import CudaDevice
from gravac_agent.setup.coding_times import Gradient, measure_coding


def main() -> None:
    """Read the question in JSON from the input, and write the answer."""
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure the coding times of plans on a device of this machine.

    Args:
        asked: ``device``, ``elements``, ``buckets``, ``ranks`` and ``plans``: of each its codec, its CF, and the
            payloads that are decoded.

    Returns:
        ``name`` of the device, None where this machine has none such; and ``seconds`` of each plan on the device and
        on the host, None where the plan fails.
    """
    place = place_of(asked["device"])
    if place is None:
        return {"name": None, "seconds": []}
    torch.set_num_threads(1)  # as ranks under torchrun
    device = None
    if place.type != "cpu":
        torch.cuda.set_device(place)
        torch.zeros(1, dtype=torch.float32, device=place)  # which lets ``warm`` compile for it
        device = CudaDevice(place)
    kernels.warm()
    costs = [
        PlanCost(codec=codec, cf=cf, payload_bytes=1, link_bytes=1.0, messages=1.0, decoded=decoded)
        for codec, cf, decoded in asked["plans"]
    ]
    gradient = Gradient(
        elements=asked["elements"], buckets=asked["buckets"], dtype=torch.float32, device=device
    )
    found = measure_coding(costs, "topk+bf16", "residual", gradient, asked["ranks"])
    seconds = [list(each) if math.isfinite(each.coding) else None for each in found]
    return {"name": "this CPU" if device is None else device.name, "seconds": seconds}


def place_of(device: str) -> torch.device | None:
    """Return where a device is here: ``cpu``, ``cuda``, ``cuda:1``, or a part of a GPU's name; None: nowhere."""
    name, count = device.lower(), torch.cuda.device_count()
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind == "cuda":
        at = int(number) if number.isdecimal() else 0 if not number else count
        return torch.device("cuda", at) if at < count else None
    at = next((at for at in range(count) if name in torch.cuda.get_device_name(at).lower()), count)
    return torch.device("cuda", at) if at < count else None
