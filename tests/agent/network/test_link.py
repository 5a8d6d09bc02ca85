"""The emulated link: rates as text, and pacing."""

import pytest

from gravac_agent import Link
from gravac_agent.network.link import Pacer, parse


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 1e8), ("1gbit", 1e9), ("2.5 Gbit/s", 2.5e9), ("64k", 64e3), ("10Gbps", 1e10)],
)
def test_link_rates(text: str, bits: float) -> None:
    assert parse(text) == Link(bits_per_second=bits)


def test_no_link() -> None:
    assert parse("none") is None
    assert parse("") is None


@pytest.mark.parametrize("text", ["fast", "100", "-1mbit", "0mbit", "1mbyte", "mbit"])
def test_wrong_link_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"link='{text}' is not a rate"):
        parse(text)


def test_pacing_is_serial() -> None:
    pacer = Pacer(Link(bits_per_second=8e6, latency_seconds=0.5))  # a byte a microsecond
    assert pacer.deadline(10.0, 1_000_000) == 11.5
    assert pacer.deadline(10.0, 1_000_000) == 13.0  # waits for the first
    assert pacer.deadline(20.0, 0) == 20.5
    assert Pacer(None).deadline(10.0, 10**9) == 10.0


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("100MB", "800mbit"),
        ("1.5GB/s", "12gbit"),
        ("100", "100mbit"),
        ("100Mb", "100mbit"),
        ("125MiB/s", "1.04858gbit"),
        ("1e9", "1gbit"),
        ("1 megabyte", None),
        ("0", None),
        ("fast", None),
    ],
)
def test_a_rate_in_other_units_has_a_hint(text: str, meant: str | None) -> None:
    with pytest.raises(ValueError, match="is not a rate") as error:
        parse(text)
    assert ("did you mean" in str(error.value)) == (meant is not None)
    if meant is not None:
        assert f"(did you mean '{meant}'?)" in str(error.value)
        assert parse(meant) is not None


def test_a_link_of_text_says_what_it_takes() -> None:
    with pytest.raises(ValueError, match=r"bits_per_second='100mbit' must be a number, such as 1e8"):
        Link(bits_per_second="100mbit")  # type: ignore[arg-type]
