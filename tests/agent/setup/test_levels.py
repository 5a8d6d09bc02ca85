"""Which ranks divide gradients, by the setting and what each rank says of its host."""

from typing import Any

import pytest
import torch

from gravac_agent.errors import SetupError
from gravac_agent.setup.levels import check_divides, choose, hosts_of, obstacle
from tests.support.streams.device import SimulatedDevice


def test_ranks_of_one_name_are_a_host_whatever_their_order() -> None:
    assert hosts_of("host", ["a", "b", "a", "b"]) == ([[0, 2], [1, 3]], "")
    assert hosts_of("auto", ["a", "a", "b", "b"]) == ([[0, 1], [2, 3]], "")
    assert hosts_of("3", ["a"] * 6) == ([[0, 1, 2], [3, 4, 5]], "")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "all ranks are on one host"),
        (["a", "b"], "each host has one rank"),
        (["a", "a", "a", "b"], "a host has 1 ranks and another 3"),
    ],
)
def test_hosts_that_cannot_divide_gradients_say_why(names: list[str], said: str) -> None:
    assert hosts_of("auto", names)[1] == said


@pytest.mark.parametrize(("levels", "ranks", "meant"), [("3", 8, "2"), ("8", 8, "4"), ("5", 9, "3")])
def test_a_number_must_divide_the_ranks(levels: str, ranks: int, meant: str) -> None:
    with pytest.raises(
        SetupError, match=rf"levels={levels} does not divide {ranks} .*did you mean levels={meant}\?"
    ):
        check_divides(levels, ranks)
    for fine in ("auto", "host", "flat", meant):
        check_divides(fine, ranks)


def test_where_no_number_divides_the_ranks_none_is_proposed() -> None:
    with pytest.raises(SetupError, match="several groups of several: write 'host' or 'flat'"):
        check_divides("2", 5)


def test_on_a_device_auto_asks_no_other_rank() -> None:
    """It has run on no GPU, so it must be asked for. As what is usual, it is not mentioned."""
    nothing: Any = None
    assert choose("auto", "", nothing, nothing, nothing, SimulatedDevice(None)) == (None, "")


def test_sharded_gradients_and_float16_stay_whole() -> None:
    plain = torch.zeros(3)
    assert obstacle([plain], sharded=False) == ""
    assert obstacle([torch.zeros(3, device="meta")], sharded=False) == ""
    assert "float16" in obstacle([plain, plain.half()], sharded=False)
    assert "HSDP" in obstacle([plain], sharded=True)
