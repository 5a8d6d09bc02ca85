"""What tests of the command line share."""

from collections.abc import Iterator

import pytest

from tools.harness.builders import PostedJob
from tools.harness.controller import Controller

OPERATOR = "an-operators-token-0123456789abc"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostedJob]:
    """``alpha`` with five windows, alone on a controller with control."""
    env = {"GRAVAC_CONTROLLER_CONTROL_TOKEN": OPERATOR}
    controller = Controller(tmp_path_factory.mktemp("looking") / "runs", env=env)
    found = PostedJob(controller, "alpha")
    found.windows(5)
    yield found
    controller.stop()
