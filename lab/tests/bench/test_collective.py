"""``gravac bench collective``: every row says what it must."""

import pytest

from gravac_lab.cli import commands
from tests.support.measured import bench


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way there is, with what the cost model says of it and of the dense one."""
    monkeypatch.setattr(commands, "EXCHANGED_ELEMENTS", 2000)
    monkeypatch.setattr(commands, "EXCHANGED_FACTORS", (10.0,))
    monkeypatch.setitem(commands.PAIRS, "collective", 3)
    result = bench("collective", "--ranks", "2")
    assert result["network"]["bytes_per_second"] > 0
    assert {each["name"] for each in result["rows"]} == {"gather", "all-reduce", "owners", "shared"}
    assert sum(each["chosen"] for each in result["rows"]) == 1
    for each in result["rows"]:
        assert each["predicted_seconds"] > 0
        assert each["predicted_baseline"] > 0
        assert (each["link_bytes"] >= 8000) == (each["name"] == "all-reduce"), "the others send a tenth"
