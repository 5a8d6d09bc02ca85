"""What tests of several folders share."""

from collections.abc import Iterator

import pytest

from tools.harness.controller import Controller


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """One controller of each worker, for tests that change nothing or have a job of a name of their own."""
    controller = Controller(tmp_path_factory.mktemp("shared") / "runs")
    yield controller
    controller.stop()
