"""Two ranks on one GPU, over gloo with CUDA tensors and over NCCL on sockets, against the same on the CPU."""

import pytest

from tests.support.gpu.cases import CODECS, EXACT, FAST, Runs
from tests.support.gpu.exact import difference
from tests.support.gpu.places import CPU, GLOO, NCCL, Place, on

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
MOST_DIFFERENCE = 0.05
"""Of the change that training made, where sums are rounded in another order: one may tip a choice or a rounding."""
REST = [codec for codec in CODECS if codec not in FAST]


@on(CPU, GLOO, NCCL)
@pytest.mark.parametrize("name", ["plain", "both delayed"])
def test_ranks_agree_with_the_cpu_and_delays_change_no_bit(runs: Runs, place: Place, name: str) -> None:
    one, two = runs.results(*place, 2, name)
    expected = runs.reference(*place, 2, "plain")[0]
    assert one["parameters"] == two["parameters"] == expected["parameters"]
    assert one["payload_bytes"] == expected["payload_bytes"] < one["dense_bytes"]


@pytest.mark.parametrize("name", ["plain", "infinite", *FAST])
def test_simulated_streams_change_no_bit(runs: Runs, name: str) -> None:
    one, two = runs.results(*CPU, 2, f"{name}, on streams")
    expected = runs.results(*CPU, 2, name)[0]
    assert one["parameters"] == two["parameters"] == expected["parameters"]
    assert one["payload_bytes"] == expected["payload_bytes"]


@on(CPU, GLOO, NCCL)
def test_an_infinite_gradient_of_one_rank_leaves_no_trace(runs: Runs, place: Place) -> None:
    one, two = runs.results(*place, 2, "infinite")
    expected = runs.reference(*place, 2, "infinite")[0]
    assert one["kept"]
    assert two["kept"]
    assert one["finite"]
    assert one["parameters"] == two["parameters"]
    assert one["nonfinite_steps"] == two["nonfinite_steps"] == 1
    assert difference(one, expected) < 1e-6


@on(CPU, GLOO)
@pytest.mark.parametrize("codec", FAST)
def test_a_fast_codec_trains_as_on_the_cpu(runs: Runs, place: Place, codec: str) -> None:
    compared(runs, place, codec)


@on(GLOO)
@pytest.mark.parametrize("codec", REST)
def test_any_codec_trains_as_on_the_cpu(runs: Runs, place: Place, codec: str) -> None:
    compared(runs, place, codec)


@on(NCCL)
@pytest.mark.parametrize("codec", FAST)
def test_a_fast_codec_trains_over_nccl_as_on_the_cpu(runs: Runs, place: Place, codec: str) -> None:
    compared(runs, place, codec)


def compared(runs: Runs, place: Place, codec: str) -> None:
    """Train with a codec; parameters are those of the CPU, to the bit or nearly."""
    one, two = runs.results(*place, 2, codec)
    expected = runs.reference(*place, 2, codec)[0]
    assert one["parameters"] == two["parameters"]
    assert one["payload_bytes"] == pytest.approx(expected["payload_bytes"], rel=MOST_DIFFERENCE)
    found = difference(one, expected)
    if codec in EXACT:
        assert one["parameters"] == expected["parameters"]
    assert found <= MOST_DIFFERENCE
