"""What the testbed needs, and why a test is skipped where it is missing."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gravac_lab.bench.namespaces import NetworkUnavailable, obstacle
from gravac_lab.bench.network import HostNetwork
from tests.support.warm import WarmPython


@pytest.fixture(scope="session")
def networks() -> None:
    """Skips where this machine does not let us make networks."""
    reason = obstacle()
    if reason is None:
        try:
            with HostNetwork(1, 1e8):
                pass
        except NetworkUnavailable as error:
            reason = str(error)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranks side by side come from zygotes. (Those on hosts cannot: zygotes live on this one.)"""
    with WarmPython(tmp_path) as environment:
        monkeypatch.setattr(sys, "executable", environment.pop("PYTHON_EXEC"))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield
