"""Events that a controller writes into a journal by itself."""

from gravac.protocol import Event, JobSpec


def registered(spec: JobSpec) -> Event:
    """A job began."""
    return Event(
        kind="registered",
        window=None,
        message=f"{spec.world_size} ranks, policy {spec.policy.name}, compressor {spec.compressor}, "
        f"{spec.window_steps} steps a window",
    )


def gap(expected: int, came: int) -> Event:
    """Windows are missing before the one that came."""
    return Event(kind="gap", window=came, message=f"windows {expected} to {came - 1} never arrived")
