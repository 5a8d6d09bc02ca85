"""Each ``file:function`` that ARCHITECTURE.md names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASES = [ROOT, ROOT / "gravac", ROOT / "agent" / "gravac_agent", ROOT / "controller" / "gravac_controller"]
PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
PAGES = ["ARCHITECTURE.md"]


def places(page: str) -> list[tuple[str, str]]:
    return sorted(set(PLACE.findall((ROOT / page).read_text())))


def defines(file: Path, function: str) -> bool:
    """Whether a file defines a function, class or method, such as ``HostExecutor.submit``."""
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for name in function.split("."):
        found = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize(
    ("page", "file", "function"), [(page, *place) for page in PAGES for place in places(page)]
)
def test_every_place_exists(page: str, file: str, function: str) -> None:
    """A renamed or moved function would leave the page pointing at nothing."""
    files = [base / file for base in BASES if (base / file).exists()]
    assert files, f"{page}: there is no file {file} in a package"
    assert any(defines(file, function) for file in files), f"{page}: {file} does not define {function}"


def test_the_life_of_a_bucket_and_of_a_window_are_described() -> None:
    """Without this, a page whose places nobody can parse would pass."""
    assert sum(len(places(page)) for page in PAGES) > 30


def test_a_missing_function_is_found() -> None:
    executor = ROOT / "agent" / "gravac_agent" / "exchange" / "host_executor.py"
    assert defines(executor, "HostExecutor.submit")
    assert not defines(executor, "HostExecutor.no_such_method")
    assert not defines(executor, "submit")
