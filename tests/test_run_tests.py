"""``make test``: two runs of pytest, each with its own tests, and one exit code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_tests import exit_code

ROOT = Path(__file__).parents[1]
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

def test_skips_beside():
    pytest.skip("needs Chromium (Debian: apt-get install chromium)")

@pytest.mark.alone
@pytest.mark.skipif(True, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("more", range(2))
def test_skips_for_itself(more):
    pass

@pytest.mark.alone
def test_skips_for_another_reason():
    pytest.skip("no GPU here")

def test_fails_beside():
    assert "apples" == "pears"

@pytest.mark.alone
def test_fails_for_itself():
    assert "cheese" == "chalk"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Tests with this project's conftest."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  browser\n  distributed\n")
    return tmp_path


def run_tests(tree: Path, *arguments: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"GRAVAC_KERNELS": "reference", "PYTHONPATH": str(ROOT)}  # nothing to compile beforehand
    done = subprocess.run(
        [sys.executable, "-m", "tools.run_tests", *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_each_run_has_its_own_tests_and_the_second_runs_although_the_first_failed(tree: Path) -> None:
    code, output = run_tests(tree)
    assert code == 1
    together, alone = output.split("== --phase=together: exit code 1")
    assert "FAILED test_it.py::test_fails_beside" in together
    assert "1 failed, 2 passed, 1 skipped" in together
    assert "FAILED test_it.py::test_fails_for_itself" in alone
    assert "1 failed, 3 passed, 3 skipped" in alone
    assert output.splitlines()[-1] == (
        "== skipped: 4 (2 for lack of prometheus, 1 for lack of chromium, 1 for other reasons)"
    )


def test_a_run_without_tests_is_no_failure(tree: Path) -> None:
    code, output = run_tests(tree, "-k", "test_beside")
    assert code == 0, output
    assert "== --phase=alone: exit code 5" in output
    assert output.splitlines()[-1] == "== skipped: 0"


def test_what_is_installed_by_hand_can_be_hidden() -> None:
    """CI runs tests so, to see that no default needs more than pip brings."""
    fresh = str(ROOT / ".ci/fresh")
    hidden = "chromium prometheus promtool tc curl git ps"
    look = f'command -v {hidden}; ls -A /usr/share/fonts /usr/src "$HOME/.cache" 2>/dev/null'
    done = subprocess.run([fresh, "sh", "-c", look], capture_output=True, text=True, check=False)
    if "skipped" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert [line for line in done.stdout.splitlines() if line and not line.endswith(":")] == []
    code = [
        fresh,
        sys.executable,
        "-c",
        "import shutil, sys; sys.exit(3 if shutil.which('tc') is None else 4)",
    ]
    assert subprocess.run(code, check=False).returncode == 3
    other = ["setpriv", "--reuid=65534", fresh, "false"]
    done = subprocess.run(other, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "fresh: skipped: hiding what is installed needs root\n")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((0, 1), 1), ((5, 1), 1), ((2, 1), 2),
     ((0, -11), -11)],
)  # fmt: skip
def test_one_exit_code_for_both(codes: tuple[int, int], expected: int) -> None:
    assert exit_code(*codes) == expected
