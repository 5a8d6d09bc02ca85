"""``make test`` and ``make test-all``: runs of pytest, each with its own tests, and one exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_tests import exit_code

pytestmark = pytest.mark.distributed

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
TIERED = """
import time
import pytest
from hypothesis import given, settings, strategies as st

def compute(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass

@pytest.mark.distributed
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.smoke), 3])
def test_of_ranks(world): pass

@pytest.mark.parametrize("many", [pytest.param(1, marks=pytest.mark.long), 2])
def test_of_one_process(many): pass

@pytest.mark.alone
def test_for_itself(): pass

@pytest.fixture
def controller(): pass

@pytest.fixture
def client(controller): pass

def test_of_a_process_by_its_fixture(client): pass

examples = []

@settings(max_examples=60, deadline=None)
@given(st.integers())
def test_property(number): examples.append(number)

def test_few_examples(): assert len(examples) == 5

def test_slow(): compute(0.6)

def test_that_waits(): time.sleep(0.8)
"""
IN_A_FOLDER = """
import pytest

def test_page(): pass

@pytest.mark.smoke
def test_first_page(): pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Tests with this project's conftest, for which half a second is slow."""
    text = (ROOT / "conftest.py").read_text()
    assert "SLOW_SECONDS = 5.0" in text
    (tmp_path / "conftest.py").write_text(text.replace("SLOW_SECONDS = 5.0", "SLOW_SECONDS = 0.5"))
    (tmp_path / "test_it.py").write_text(TESTS)
    markers = "".join(f"  {mark}\n" for mark in ("alone", "browser", "distributed", "long", "smoke"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}")
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


def test_the_tiers_are_the_whole_and_slow_tests_are_named(tree: Path) -> None:
    (tree / "test_it.py").write_text(TIERED)
    (tree / "browser").mkdir()
    (tree / "browser" / "test_page.py").write_text(IN_A_FOLDER)
    durations = tree / "build" / "durations.json"

    code, output = run_tests(tree, "fast", "--numprocesses=0")
    assert code == 0, output
    fast = json.loads(durations.read_text())
    assert {name.split("::")[1] for name in fast} == {
        *("test_of_ranks[2]", "test_of_one_process[2]", "test_property", "test_few_examples", "test_slow"),
        *("test_that_waits", "test_first_page"),
    }
    assert output.count("s of computing") == 1
    assert " s of computing: test_it.py::test_slow\n" in output
    waits = fast["test_it.py::test_that_waits"]
    assert waits["seconds"] >= 0.8 > 0.5 > waits["computing"]
    assert "--phase=alone" not in output

    durations.unlink()
    code, output = run_tests(tree, "rest", "--numprocesses=0")
    assert code == 0, output
    rest = json.loads(durations.read_text())
    assert {name.split("::")[1] for name in rest} == {
        *("test_of_ranks[3]", "test_of_one_process[1]", "test_for_itself", "test_page"),
        "test_of_a_process_by_its_fixture",
    }

    (tree / "test_it.py").write_text(TIERED.replace("compute(0.6)", "compute(1.1)"))
    code, output = run_tests(tree, "fast", "--numprocesses=0", "-k", "test_slow")
    assert code == 1, output
    assert "mark them `long`" in output
    code, output = run_tests(tree, "fast", "--numprocesses=0", "-k", "test_for_itself")
    assert code == 5
    assert "`make test-all` runs them" in output


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
