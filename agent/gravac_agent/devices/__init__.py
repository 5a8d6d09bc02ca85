"""Accelerators: the streams, events and copies that the exchange needs, and nothing else of them."""

from gravac_agent.devices.base import Device, DeviceEvent, Stream

__all__ = ["Device", "DeviceEvent", "Stream"]
