"""``gravac bench hook``: every row says what it must, and every way of the hook is a method."""

import pytest

from gravac_lab.bench import hook as hooks
from gravac_lab.cli import commands
from tests.support.measured import bench


def test_every_way_of_the_hook_is_a_method() -> None:
    """The two lists are in packages that cannot import each other."""
    from gravac_lab.programs.methods import agent_spec

    for _, method, _ in hooks.OTHERS.values():
        assert method in ("dense", "fp16") or agent_spec(method) is not None


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the methods only: every one needs processes of its own."""
    monkeypatch.setattr(commands, "WIDTH", 8)
    monkeypatch.setitem(commands.PAIRS, "hook", 3)
    monkeypatch.setattr(hooks, "OTHERS", {"topk": hooks.OTHERS["topk"]})
    monkeypatch.setattr(hooks, "WARM_UP", 1)
    monkeypatch.setattr(hooks, "STEPS", 2)
    result = bench("hook")
    (each,) = result["rows"]
    assert each["name"] == "agent, Top-k 1 %"
    assert each["cf"] == 100
    assert each["n"] == result["elements"] > 10_000
    assert each["pairs"] == 3
    assert 0 < each["payload_bytes"] < 4 * each["n"]
