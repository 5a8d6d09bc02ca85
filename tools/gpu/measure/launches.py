"""Counts what the host launches inside of a span, in a profile of torch (its Chrome trace)."""

import re
from typing import Any

SPAN = "gravac: a bucket"
"""Name of the spans, made with ``torch.profiler.record_function``."""
LAUNCH = re.compile(r"cu(da)?(Launch|Memcpy|Memset)")
"""Calls that queue a kernel, a copy or a fill."""


def launches(profile: dict[str, Any]) -> list[int]:
    """Return how many calls each span made that launch something, in the order of the spans."""
    events = [event for event in profile["traceEvents"] if "dur" in event]
    spans = [event for event in events if event["name"] == SPAN and event.get("cat") == "user_annotation"]
    calls = [
        event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and LAUNCH.match(event["name"])
    ]
    spans.sort(key=lambda event: event["ts"])
    return [sum(span["ts"] <= at < span["ts"] + span["dur"] for at in calls) for span in spans]
