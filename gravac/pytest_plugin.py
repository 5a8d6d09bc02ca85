"""A pytest plugin, found by pytest as soon as gravac is installed: the fixture ``gravac_trace`` and its ini option.

It is loaded in every test run of everybody who has gravac, so it imports nothing else of gravac: neither
pydantic nor torch.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

OPTION = "gravac_traces"
ENDINGS = ("", ".gz", ".jsonl", ".jsonl.gz")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``gravac_traces`` in pytest's configuration: folders of traces, from the project's root."""
    parser.addini(OPTION, "folders in which the fixture gravac_trace looks for traces", type="paths")


@pytest.fixture
def gravac_trace(request: pytest.FixtureRequest) -> Callable[[str | Path], Path]:
    """``gravac_trace("run")``: path of the trace run, run.jsonl or either gzipped, for ``gravac.testing``.

    It is looked for beside the test's own file, then in the folders of the ini option. FileNotFoundError says where.
    """

    def find(name: str | Path) -> Path:
        __tracebackhide__ = True
        folders: list[Path] = [request.path.parent, *request.config.getini(OPTION)]
        candidates: Iterator[Path] = (folder / f"{name}{ending}" for folder in folders for ending in ENDINGS)
        found = next((path for path in candidates if path.is_file()), None)
        if found is None:
            looked = ", ".join(map(str, folders))
            raise FileNotFoundError(
                f"no trace {name} in {looked}; name its folder in pytest's option {OPTION}"
            )
        return found

    return find
