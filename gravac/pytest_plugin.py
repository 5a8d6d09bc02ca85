"""pytest plugin with the fixture ``gravac_trace`` and its ini option. pytest finds it when gravac is installed.

It is loaded in every test run of every user of gravac, so it imports nothing else of gravac, neither pydantic nor
torch.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

OPTION = "gravac_traces"
ENDINGS = ("", ".gz", ".jsonl", ".jsonl.gz")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``gravac_traces`` to pytest's configuration: folders of traces, relative to the project's root."""
    parser.addini(OPTION, "folders in which the fixture gravac_trace looks for traces", type="paths")


@pytest.fixture
def gravac_trace(request: pytest.FixtureRequest) -> Callable[[str | Path], Path]:
    """Return a function that finds traces by name, for ``gravac.testing``.

    ``gravac_trace("run")`` returns the path of ``run``, ``run.jsonl`` or either one compressed, first beside the test's
    own file, then in the folders of the ini option. It raises FileNotFoundError with the folders it searched.
    """

    def find(name: str | Path) -> Path:
        __tracebackhide__ = True
        folders: list[Path] = [request.path.parent, *request.config.getini(OPTION)]
        candidates: Iterator[Path] = (folder / f"{name}{ending}" for folder in folders for ending in ENDINGS)
        found = next((path for path in candidates if path.is_file()), None)
        if found is None:
            searched = ", ".join(map(str, folders))
            raise FileNotFoundError(
                f"no trace {name} in {searched}; name its folder in pytest's option {OPTION}"
            )
        return found

    return find
