"""Messages and bytes of a step's exchange."""

import pytest

from gravac.collectives import Network
from gravac.predict import exchange
from gravac.predict.exchange import UnknownSizes, buckets, volume

NETWORK = Network(latency_seconds=1e-4, bytes_per_second=1e7)
ONE = 1 << 18
"""Elements of DDP's first bucket."""


def test_dense_is_a_ring() -> None:
    exchange_volume = volume("topk", ONE, 1.0, 8, NETWORK)
    assert exchange_volume.payload_bytes == 4 * ONE
    assert exchange_volume.link_bytes == pytest.approx(2 * 7 / 8 * 4 * ONE)
    assert exchange_volume.messages == 2 * 7 + 3  # the ring's, the tick's
    assert (exchange_volume.collective, exchange_volume.decoded) == ("all-reduce", 1)


def test_two_ranks_gather() -> None:
    exchange_volume = volume("topk", ONE, 100.0, 2, NETWORK)
    assert exchange_volume.collective == "gather"
    assert exchange_volume.link_bytes == pytest.approx(exchange_volume.payload_bytes)
    assert exchange_volume.messages == 1 + 2
    assert exchange_volume.decoded == 2
    assert 20 < 4 * ONE / exchange_volume.payload_bytes < 200


def test_many_ranks_meet_another_way() -> None:
    """A gather of 1000 payloads at CF 10 would be 100 times the dense bytes."""
    exchange_volume = volume("topk", ONE, 10.0, 1000, NETWORK)
    assert exchange_volume.collective != "gather"
    assert exchange_volume.link_bytes < 3 * 4 * ONE


def test_coarse_values_meet_at_owners_under_an_optimizer_that_ages() -> None:
    gathered, owned = (volume("topk+twobit", 8 * ONE, 16.6, 64, NETWORK, aged=aged) for aged in (False, True))
    assert (gathered.collective, owned.collective) == ("gather", "owners")
    assert gathered.link_bytes > 20 * owned.link_bytes


def test_nobody_to_send_to() -> None:
    exchange_volume = volume("topk", ONE, 1.0, 1, NETWORK)
    assert (exchange_volume.messages, exchange_volume.link_bytes) == (0, 0)


def test_buckets_are_ddps() -> None:
    assert buckets(1000) == (1000,)
    assert buckets(ONE) == (ONE,)
    cut = buckets(10_000_000)
    assert sum(cut) == 10_000_000
    assert cut[0] == ONE
    assert cut[1] == 25 * (1 << 18)
    assert len(cut) == 3


def test_codecs_that_send_the_largest() -> None:
    assert exchange.keeps_largest("topk")
    assert exchange.keeps_largest("topk+bf16")
    assert not exchange.keeps_largest("randomk")
    assert not exchange.keeps_largest("powersgd:rank=2")


def test_what_follows_from_shapes_is_not_told() -> None:
    with pytest.raises(UnknownSizes, match="shapes"):
        volume("powersgd:rank=2", ONE, 10.0, 2, NETWORK)
    with pytest.raises(ValueError, match="unknown"):
        volume("zip", ONE, 10.0, 2, NETWORK)
