"""``make test``: two phases, each with its own tests, one exit code, and all failures at the end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_tests import run, verdict

HERE = Path(__file__).parent
TESTS = """
import os
import pytest

def test_beside():
    assert os.environ.get("PYTEST_XDIST_WORKER") and os.environ["OMP_NUM_THREADS"] == "1"

@pytest.mark.distributed
def test_what_it_starts_orders_its_sets_as_it_likes():
    assert os.environ.get("PYTEST_XDIST_WORKER") and "PYTHONHASHSEED" not in os.environ

@pytest.mark.alone
@pytest.mark.parametrize("more", [
    pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("alone", "browser", "distributed")
])
def test_for_itself(more):
    assert "PYTEST_XDIST_WORKER" not in os.environ

def test_fails_beside():
    assert "apples" == "pears"

@pytest.mark.alone
def test_fails_for_itself():
    assert "cheese" == "chalk"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Tests with this project's conftest."""
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  browser\n  distributed\n")
    return tmp_path


def phases(tree: Path, *arguments: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["GRAVAC_KERNELS"] = "reference"  # nothing to compile beforehand
    done = subprocess.run(
        [sys.executable, str(HERE.parent / "tools" / "run_tests.py"), *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_each_phase_runs_its_own_and_failures_are_told_at_the_end(tree: Path) -> None:
    code, output = phases(tree)
    assert code == 1
    end = output[output.rindex("== failed, together: ") :]
    assert "apples" in end
    assert "cheese" in end[end.index("== failed, alone: ") :]
    last = end[end.index("== together: ") :].splitlines()
    assert [line.partition(" in ")[0] for line in last[::2]] == ["== together: 3 tests", "== alone: 4 tests"]
    assert last[1::2] == [
        "   FAILED test_it.py::test_fails_beside",
        "   FAILED test_it.py::test_fails_for_itself",
    ]


def test_a_phase_without_tests_is_no_failure(tree: Path) -> None:
    code, output = phases(tree, "-k", "test_beside")
    assert code == 0, output
    assert "== alone: 0 tests" in output


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((0, 1), 1), ((5, 1), 1), ((2, 1), 2),
     ((0, -11), -11)],
)  # fmt: skip
def test_one_exit_code_for_both(codes: tuple[int, int], expected: int) -> None:
    assert verdict(*codes) == expected


def test_a_phase_that_dies_is_a_failure_whatever_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    outcome = run("alone", [], tmp_path / "report.xml")
    assert outcome.code == 1
    assert outcome.failures == [("pytest", "ended before its report")]
