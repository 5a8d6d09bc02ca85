"""A rank of the demo that is started wrongly."""

import sys

import pytest

from gravac_lab.demo import train


def test_a_rank_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["demo"])
    with pytest.raises(SystemExit, match="torchrun"):
        train.main()
