"""Reads a profile (torch's Chrome trace): where the host waited for the GPU, and what was copied to the host."""

from collections import Counter
from typing import Any

SPAN = "steps that must not wait"
"""Name of the span that counts, made with ``torch.profiler.record_function``."""
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")
"""Calls that wait for all of a stream or a device. One to the host's memory that is not pinned waits as well."""
EVENTS = ("cudaEventSynchronize", "cuEventSynchronize")
"""Calls that wait for an event: for the step before, where the host is a whole step ahead."""
SMALL_BYTES = 4096
"""The tick is smaller."""


def waits(profile: dict[str, Any]) -> dict[str, Any]:
    """Count what made the host wait within the span, and the copies to the host that it started.

    Args:
        profile: A Chrome trace as torch exports it.

    Returns:
        ``waits``: calls by name; ``events``: how many calls wait for an event; ``copies``: bytes of each copy from
        device to host, in order; ``large``: how many of these are larger than the tick; ``synchronous``: how many went
        to memory that is not pinned.

    Raises:
        ValueError: The span is not in the trace.
    """
    events = [event for event in profile["traceEvents"] if "dur" in event]
    spans = [event for event in events if event["name"] == SPAN and event.get("cat") == "user_annotation"]
    if not spans:
        raise ValueError(f"the profile has no span {SPAN!r}")
    begin, end = spans[0]["ts"], spans[0]["ts"] + spans[0]["dur"]
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    inside = [event for event in calls if begin <= event["ts"] < end]
    started = {event["args"].get("correlation") for event in inside if "args" in event}
    copies = [
        event
        for event in events
        if event.get("cat") == "gpu_memcpy"
        and "DtoH" in event["name"]
        and event["args"].get("correlation") in started
    ]
    copies.sort(key=lambda event: event["ts"])
    sizes = [int(event["args"].get("bytes", 0)) for event in copies]
    return {
        "waits": dict(Counter(event["name"] for event in inside if event["name"] in WAITING)),
        "events": sum(event["name"] in EVENTS for event in inside),
        "copies": sizes,
        "large": sum(size > SMALL_BYTES for size in sizes),
        "synchronous": sum("Pageable" in event["name"] for event in copies),
    }
