"""Choosing a collective: choices follow from the cost model, and wrong ones are named."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.aggregators import OneShot, build
from gravac.collectives import (
    ALONE,
    COLLECTIVES,
    CollectiveChooser,
    Network,
    Workload,
    choose,
    keeps_up,
    parse_collective,
)
from gravac.compressors import COMPRESSORS
from gravac.compressors import build as build_codec
from tests.support.maths.aggregator_checks import SELECTING, steps, world
from tests.support.maths.members import choices

NETWORKS = st.builds(Network, latency_seconds=st.floats(0, 0.1), bytes_per_second=st.floats(1e3, 1e11))


def load(codec: str = "topk", numel: int = 1 << 20, cf: float = 100.0, ranks: int = 8) -> Workload:
    return Workload(build_codec(codec), numel, cf, torch.float32, ranks)


@given(
    network=NETWORKS,
    numel=st.integers(1, 10**8),
    cf=st.floats(1, 1000),
    ranks=st.integers(2, 5000),
    name=st.sampled_from(sorted(COMPRESSORS)),
    aged=st.booleans(),
)
@settings(max_examples=50)
def test_the_choice_is_the_quickest_with_the_handicap(
    network: Network, numel: int, cf: float, ranks: int, name: str, aged: bool
) -> None:
    one = load(name, numel, cf, ranks)
    choice = choose(network, one, aged)
    chosen = COLLECTIVES[choice.name]
    assert chosen.fits(one.codec)
    assert chosen.sends_all or ranks > 4
    assert choice == choose(network, one, aged)
    took = choice.predicted[choice.name]
    for other, seconds in choice.predicted.items():
        if ranks <= 4 and not COLLECTIVES[other].sends_all:
            continue
        if keeps_up(COLLECTIVES[other], cf, aged) == keeps_up(chosen, cf, aged):
            assert took <= seconds
        elif keeps_up(chosen, cf, aged):
            assert took <= 2 * seconds
        else:
            assert 2 * took <= seconds


@pytest.mark.parametrize(
    ("name", "numel", "ranks", "cf", "speed", "chosen"),
    [
        ("topk", 6_500_000, 3, 100.0, 125e6, "gather"),
        ("topk", 6_500_000, 8, 100.0, 12.5e6, "shared"),
        ("topk", 6_500_000, 64, 10.0, 1.25e6, "shared"),
        ("topk", 1000, 16, 10.0, 125e6, "all-reduce"),  # small: fewest messages to handle
        ("topk+bf16", 6_500_000, 64, 100.0, 1.25e6, "shared"),
        ("topk+bf16", 6_500_000, 4, 1000.0, 1.25e6, "gather"),  # as its efficiencies were simulated
        ("topk+nearest:levels=15", 6_500_000, 8, 5.1, 1.25e6, "shared"),
        (
            "topk+twobit",
            6_500_000,
            64,
            100.0,
            1.25e6,
            "gather",
        ),  # so that ages of gravac.optim know how many sent
        ("topk+bf16", 6_500_000, 4, 100.0, 1.25e9, "gather"),
        ("dgc", 6_500_000, 64, 10.0, 125e6, "all-reduce"),  # sizes vary: only a gather would do else
        ("dgc", 6_500_000, 4, 10.0, 125e6, "gather"),
        ("qsgd", 6_500_000, 16, 4.0, 125e6, "all-reduce"),
        ("qsgd:bits=8", 6_500_000, 16, 4.0, 125e6, "compressed-all-reduce"),
        (
            "dither:levels=5,coding=huffman",
            6_500_000,
            8,
            11.8,
            3.75e6,
            "compressed-all-reduce",
        ),  # rounds as without
        (
            "nearest:levels=3,coding=huffman",
            6_500_000,
            8,
            17.3,
            3.75e6,
            "gather",
        ),  # too coarse to be rounded twice
    ],
)
def test_choices(name: str, numel: int, ranks: int, cf: float, speed: float, chosen: str) -> None:
    network = Network(latency_seconds=1e-4, bytes_per_second=speed)
    assert choose(network, load(name, numel, cf, ranks)).name == chosen


@pytest.mark.parametrize(
    ("name", "cf", "ranks", "aged", "chosen"),
    [
        ("topk+twobit", 16.6, 8, True, "owners"),
        ("topk+twobit", 16.6, 64, True, "owners"),
        ("topk+twobit", 36.0, 64, True, "gather"),  # keeps 0.86 of a GPT's progress by owners
        ("topk+twobit", 16.6, 4, True, "gather"),  # a stronger CF saves more
        ("topk+twobit", 16.6, 8, False, "gather"),
        ("topk+bf16", 16.6, 8, True, "owners"),  # shared sends fewer bytes, and keeps less
        ("topk+bf16", 16.6, 8, False, "shared"),
    ],
)
def test_owners_keep_up_with_an_optimizer_that_ages(
    name: str, cf: float, ranks: int, aged: bool, chosen: str
) -> None:
    network = Network(latency_seconds=1e-4, bytes_per_second=1.25e6)
    assert choose(network, load(name, 6_500_000, cf, ranks), aged).name == chosen


def test_choices_are_noted_once() -> None:
    network = Network(latency_seconds=1e-5, bytes_per_second=12.5e6)
    chooser = CollectiveChooser(ALONE, "auto", network)
    assert chooser.sends_all
    assert chooser.choose(load(cf=10.0, ranks=16)).name == "shared"
    assert not chooser.sends_all
    assert chooser.choose(load(cf=10.0, ranks=16)) is chooser.choose(load(cf=20.0, ranks=16))
    assert chooser.choose(load("randomk", ranks=16)).name == "all-reduce"
    assert chooser.choose(load(cf=10.0, numel=60_000, ranks=3)).name == "gather"
    assert chooser.notes() == [
        "Collectives at CF 10 for 0.01 ms and 12.5 MB/s: shared for 1,048,576 elements; gather for 60,000 elements.",
        "Collectives at CF 20 for 0.01 ms and 12.5 MB/s: shared for 1,048,576 elements.",
    ]
    assert chooser.notes() == []
    chooser.use(Network(latency_seconds=1e-5, bytes_per_second=1e11))
    assert chooser.choose(load(cf=10.0, numel=60_000, ranks=3)).name == "all-reduce"


def test_two_ranks_gather_and_so_does_an_unknown_network() -> None:
    """Whatever the network, so there is nothing to measure; a collective that was named is taken."""
    network = Network(latency_seconds=0.0, bytes_per_second=1e3)
    assert CollectiveChooser(ALONE, "auto", network).choose(load(cf=1.0, ranks=2)).name == "gather"
    assert CollectiveChooser(ALONE, "auto").choose(load(cf=10.0, ranks=16)).name == "gather"
    assert CollectiveChooser(ALONE, "shared").choose(load(cf=10.0, ranks=2)).name == "shared"


@pytest.mark.parametrize(
    ("codec", "collective", "said"),
    [
        (
            "topk",
            "ring",
            f"collective='ring' is unknown; choose one of {', '.join(sorted((*COLLECTIVES, 'auto')))}",
        ),
        ("topk", "auto:fast=1", "collective='auto:fast=1' is unknown"),
        ("topk", "shared:leader=me", "shared: leader='me' must be one of owners, turns, largest"),
        ("topk", "shared:boss=me", "collective='shared:boss=me' has no setting 'boss'; it has leader"),
        ("dgc", "shared", f"compressor='dgc' is not: {choices('dgc')}"),
        (
            "qsgd",
            "owners",
            "collective='owners' needs a selector that sends a fixed number of elements",
        ),
        ("randomk+int8", "shared", f"compressor='randomk+int8' is not: {choices('randomk+int8')}"),
    ],
)
def test_wrong_collectives_are_named(codec: str, collective: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        build(codec, ALONE, collective)
    assert said in str(error.value)


def test_linear_codecs_and_aggregators_ignore_the_collective() -> None:
    assert isinstance(build("randomk", ALONE, "shared"), OneShot)
    assert build("powersgd", ALONE, "owners").name == "powersgd"
    assert parse_collective("auto") is None


def test_a_damaged_state_is_named() -> None:
    with pytest.raises(ValueError, match="state of 'through/x' must be one number of a bucket and a CF"):
        build("topk", ALONE).load_state_dict({"through/x": torch.ones(1)})


def test_a_step_of_many_buckets() -> None:
    """All in flight at once, as the executor has them."""
    for text in SELECTING:
        for rank in world(3, text, lambda aggregator: steps(aggregator, 2, 4.0)):
            assert len(rank) == 2  # type: ignore[arg-type]
