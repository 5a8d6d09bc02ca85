"""``gravac bench wire``: on links of its own, and what it says without root."""

import os

import pytest

from gravac_lab.cli import commands
from tests.support.measured import bench


@pytest.mark.distributed
@pytest.mark.usefixtures("networks")
def test_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout, packed message and interface agree; with 16-bit values the wire holds what the nominal CF promises."""
    monkeypatch.setattr(commands, "SENT_ELEMENTS", 50_000)
    monkeypatch.setattr(commands, "WIRE_FACTORS", (10.0, 100.0))
    result = bench("wire", "--n", "1e5", "--n", "5e4", "--n", "1e8")
    assert result["no_network"] is None
    for each in result["rows"]:
        assert each["wire_cf"] >= each["cf"]
        assert each["wire_cf"] == each["ratio"] == 4 * each["n"] / each["payload_bytes"]
        assert each["seconds"] == pytest.approx(each["payload_bytes"] * 8 / 1e9)
        assert each["packed_bytes"] == (None if each["n"] == 10**8 else each["payload_bytes"])
        if each["n"] == 50_000:
            assert each["interface_ratio"] == pytest.approx(1.0, abs=0.03)
        else:
            assert each["interface_ratio"] is None
    assert 0 < result["gloo_bytes"] < 1000


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_wire_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(commands, "WIRE_FACTORS", (10.0,))
    result = bench("wire", "--n", "2000", "--codec", "qsgd:bits=4")
    assert "needs root" in result["no_network"] or "is missing" in result["no_network"]
    assert [each["interface_bytes"] for each in result["rows"]] == [None]
