"""What tests of predictions share."""

from collections.abc import Iterator

import pytest

from tests.support.efficiencies import fixed_efficiencies


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield
