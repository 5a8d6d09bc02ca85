"""What the testbed needs, and why a test is skipped where it is missing."""

import pytest

from gravac_controller.bench.namespaces import NetworkUnavailable, obstacle
from gravac_controller.bench.network import Network


@pytest.fixture(scope="session")
def networks() -> None:
    """Skips where this machine does not let us make networks."""
    reason = obstacle()
    if reason is None:
        try:
            with Network(1, 1e8):
                pass
        except NetworkUnavailable as error:
            reason = str(error)
    if reason is not None:
        pytest.skip(reason)
