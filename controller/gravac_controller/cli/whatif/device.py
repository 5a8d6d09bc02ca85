"""``--device``: what coding takes on a device, measured where this machine has it, else as it was measured once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import click

from gravac.policies.base import Plan
from gravac.wording import printable
from gravac_controller.cli.source import CannotUse, needing_torch

_MEASURE = "from gravac_agent.setup.device_answer import main; main()"
MEASURING_SECONDS = 300.0
"""Longest wait for a device, where kernels may have to be compiled."""


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What plans take on a device.

    Attributes:
        seconds: Time of encoding and decoding in a step, by plan.
        note: Where that comes from.
    """

    seconds: dict[Plan, float]
    note: str


def times_on(
    device: str, plans: Iterable[Plan], elements: int, ranks: int, decoded: Callable[[Plan], int]
) -> DeviceTimes:
    """Return what plans take on a device.

    Args:
        device: ``cpu``, ``cuda``, ``cuda:1``, or a part of a GPU's name, such as ``h100``.
        plans: To measure.
        elements: Elements of the gradient.
        ranks: World size.
        decoded: Payloads that a rank decodes, by plan.

    Raises:
        CannotUse: This machine has no such device, and none was measured elsewhere.
    """
    with needing_torch("measuring needs"):
        from gravac.predict.exchange import buckets
        from gravac.predict.nominal import PUBLISHED
    every = list(plans)
    asked = {
        "device": device,
        "elements": elements,
        "buckets": len(buckets(elements)),
        "ranks": ranks,
        "plans": [[plan.codec, plan.cf, decoded(plan)] for plan in every],
    }
    # In the agent, which the controller does not import.
    try:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE],
            input=json.dumps(asked),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=MEASURING_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"--device {device}: not measured in {MEASURING_SECONDS:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise click.ClickException(printable(f"--device {device}: cannot be measured: {last}"))
    found = json.loads(done.stdout)
    if found["name"] is not None:
        measured = zip(every, found["seconds"], strict=True)
        seconds = {plan: max(each) for plan, each in measured if each is not None}
        return DeviceTimes(seconds, f"encoding and decoding were measured on {found['name']} now")
    if (published := PUBLISHED.get(device.lower())) is not None:
        return DeviceTimes(dict.fromkeys(every, published.seconds(elements)), published.words)
    known = ", ".join(f"{name}, as was measured once ({each.source})" for name, each in PUBLISHED.items())
    raise CannotUse(
        printable(
            f"--device {device}: this machine has no such device, and nobody published its figures: give cpu, which is "
            f"measured, or {known}"
        )
    )
