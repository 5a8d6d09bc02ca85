"""Steps of a job that was never run: what was measured of it replaces what codecs state."""

from dataclasses import replace

import pytest

from gravac.policies.base import Plan
from gravac.predict.nominal import NominalJob, Published, link

JOB = NominalJob(elements=1_000_000, ranks=4, compute_seconds=0.25)
NETWORK = link(1e8)


def test_coding_that_was_measured_counts_for_its_plan_alone() -> None:
    """It is divided into encoding and decoding as stated, and the exchange stays."""
    measured = replace(JOB, coding={Plan("topk", 100.0): 0.5})
    stated, step = (job.step("topk", 100.0, NETWORK) for job in (JOB, measured))
    assert step.compress + step.decompress == pytest.approx(0.5)
    assert step.compress / step.decompress == pytest.approx(stated.compress / stated.decompress)
    assert measured.step("topk", 10.0, NETWORK) == JOB.step("topk", 10.0, NETWORK)
    dense = measured.step("topk", 1.0, NETWORK)
    assert (dense.compress, dense.decompress) == (0.0, 0.0)
    assert dense.seconds == pytest.approx(0.25 + 1.5 * 4e6 / (12.5e6 * 0.956), rel=0.1)


def test_rounds_of_unknown_size_send_what_they_are_said_to() -> None:
    codec = "powersgd:rank=2"
    assert JOB.volume(codec, 10.0, NETWORK, payload_bytes=1234).payload_bytes == 1234
    assert JOB.volume(codec, 10.0, NETWORK).payload_bytes == 4e6 / 10
    with pytest.raises(ValueError, match="unknown"):
        JOB.volume("zip", 10.0, NETWORK)


def test_of_a_gpu_the_longer_of_device_and_host_counts() -> None:
    gpu = Published(codec="a codec", device="a GPU", bytes_per_second=4e9, host_seconds=6e-4, source="a page")
    assert [gpu.seconds(1_000_000, count) for count in (1, 3)] == pytest.approx([1e-3, 1.8e-3])
    assert gpu.seconds(1_000_000) == pytest.approx(1.2e-3), "DDP makes two buckets of it"
