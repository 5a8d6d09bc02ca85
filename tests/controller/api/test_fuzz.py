"""A few hundred generated requests over the OpenAPI document; ``python -m tools.fuzz.api`` makes thousands."""

from pathlib import Path

import pytest

from tools.fuzz.api import fuzz


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.distributed
def test_generated_requests_get_documented_answers(tmp_path: Path, tokens: bool) -> None:
    found = fuzz(tmp_path, tokens=tokens, examples=5, phases="examples,fuzzing", seed=3)
    assert found.passed, found.output
    assert found.cases > 80
