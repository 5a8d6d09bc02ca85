"""What tests of policy auto share."""

from collections.abc import Iterator

import pytest

from tests.support.efficiencies import fixed_efficiencies


@pytest.fixture(autouse=True)
def fixed_table() -> Iterator[None]:
    """What codecs are expected to lose does not follow the newest simulations."""
    with fixed_efficiencies():
        yield
