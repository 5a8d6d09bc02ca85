"""Which device the gradients are on."""

import torch

from gravac_agent.devices.base import Device
from gravac_agent.devices.cuda import CudaDevice


def device_of(device: torch.device) -> Device | None:
    """Return the accelerator with that name; None for the host's memory, where the exchange has threads instead.

    Raises:
        ValueError: There is no exchange for such a device.
    """
    if device.type == "cpu":
        return None
    if device.type == "cuda":
        return CudaDevice(torch.device("cuda", device.index or 0))
    raise ValueError(f"gradients on {device.type} are not compressed, only those on cpu and cuda")
