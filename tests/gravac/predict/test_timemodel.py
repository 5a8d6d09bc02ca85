"""A step's time by its terms: what coding adds, what an exchange takes, and how much of that shows."""

import pytest

from gravac.collectives import Network
from gravac.predict.exchange import Volume
from gravac.predict.timemodel import TimeModel

MODEL = TimeModel(
    elements=10_000,
    compute_seconds=1.0,
    compress_seconds=0.2,
    compress_seconds_per_coded=1e-4,
    decompress_seconds_per_coded=1e-5,
    waiting_seconds=0.05,
    goodput_ratio=0.5,
    handling_seconds_per_byte=1e-7,
    last_ratio=0.25,
    hidden_seconds=0.6,
)
NETWORK = Network(latency_seconds=0.01, bytes_per_second=1e6)


@pytest.mark.parametrize(
    ("cf", "link_bytes", "transfer", "exposed"),
    [
        (1.0, 1e5, 0.33, 0.25 * 0.33),  # all but the last bucket hides
        (1.0, 1e6, 2.22, 2.22 - 0.6),  # backward is too short
        (16.0, 1e6, 2.22, 2.22 - 0.6 - 0.75 * 0.325),  # and buckets are also sent while others are encoded
    ],
)
def test_the_terms_of_a_step(cf: float, link_bytes: float, transfer: float, exposed: float) -> None:
    """By hand: at CF 16, coding is charged for an eighth of the elements, and dense for none."""
    volume = Volume(10, link_bytes, link_bytes, "gather", decoded=4, inside_seconds=0.02)
    assert MODEL.transfer_seconds(volume, NETWORK) == pytest.approx(transfer)
    step = MODEL.step(cf, volume, NETWORK)
    assert step.compute == 1.0
    assert step.exposed == pytest.approx(0.05 + exposed)
    coding = (0.0, 0.0) if cf == 1.0 else (0.2 + 1250 * 1e-4, 4 * 1250 * 1e-5)
    assert (step.compress, step.decompress) == pytest.approx(coding)
    assert step.seconds == pytest.approx(1.05 + exposed + sum(coding))
