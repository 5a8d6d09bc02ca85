"""``make test`` and ``make test-all``: runs of pytest, each with its own tests, and one exit code."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import needs_lab
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

@pytest.mark.parametrize("unchecked", ["", ": 2 unchecked: a, b", ": 1 unchecked: c"])
def test_skips_what_is_in_the_laboratory(unchecked):
    pytest.skip("lab/ is not here" + unchecked)

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
STARTING = """
import subprocess
import pytest

def test_starts_a_process(): subprocess.run(["true"], check=True)

@pytest.mark.smoke
def test_may_start_one(): subprocess.run(["true"], check=True)
"""
SUITE = """
import pytest

@pytest.mark.parametrize("name", ["topk", "qsgd:bits=2"])
def test_codec(name): pass
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
    assert "SLOW_SECONDS = 10.0" in text
    (tmp_path / "conftest.py").write_text(text.replace("SLOW_SECONDS = 10.0", "SLOW_SECONDS = 0.5"))
    (tmp_path / "test_it.py").write_text(TESTS)
    markers = "".join(f"  {mark}\n" for mark in ("alone", "browser", "distributed", "long", "smoke"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}")
    return tmp_path


def run_tests(tree: Path, *arguments: str, paths: tuple[Path, ...] = (ROOT,)) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"GRAVAC_KERNELS": "reference"}  # nothing to compile beforehand
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths))}
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
    assert "1 failed, 2 passed, 4 skipped" in together
    assert "FAILED test_it.py::test_fails_for_itself" in alone
    assert "1 failed, 3 passed, 3 skipped" in alone
    assert output.splitlines()[-1] == (
        "== skipped: 7 (3 for lack of lab/ with 3 references to it, 2 for lack of prometheus, "
        "1 for lack of chromium, 1 for other reasons)"
    )


def test_a_run_without_tests_is_no_failure(tree: Path) -> None:
    code, output = run_tests(tree, "-k", "test_beside")
    assert code == 0, output
    assert "== --phase=alone: exit code 5" in output
    assert output.splitlines()[-1] == "== skipped: 0"


def test_the_tiers_are_the_whole_and_slow_tests_are_named(tree: Path) -> None:
    (tree / "test_it.py").write_text(TIERED)
    for folder in ("compressors", "browser"):
        (tree / folder).mkdir()
    (tree / "compressors" / "test_base.py").write_text(SUITE)
    (tree / "browser" / "test_page.py").write_text(IN_A_FOLDER)
    durations = tree / "build" / "durations.json"

    code, output = run_tests(tree, "fast", "--numprocesses=0")
    assert code == 1, output
    assert "failed" not in output, "that one was slow is all"
    fast = json.loads(durations.read_text())
    assert {name.split("::")[1] for name in fast} == {
        *("test_of_ranks[2]", "test_of_one_process[2]", "test_property", "test_few_examples", "test_slow"),
        *("test_that_waits", "test_first_page", "test_codec[topk]"),
    }
    assert output.count("s of computing") == 1
    assert " s of computing: test_it.py::test_slow\n" in output
    assert "mark them `long`" in output
    waits = fast["test_it.py::test_that_waits"]
    assert waits["seconds"] >= 0.8 > 0.5 > waits["computing"]
    assert "--phase=alone" not in output

    durations.unlink()
    code, output = run_tests(tree, "rest", "--numprocesses=0")
    assert code == 0, output
    rest = json.loads(durations.read_text())
    assert {name.split("::")[1] for name in rest} == {
        *("test_of_ranks[3]", "test_of_one_process[1]", "test_for_itself", "test_page"),
        *("test_of_a_process_by_its_fixture", "test_codec[qsgd:bits=2]"),
    }

    code, output = run_tests(tree, "fast", "--numprocesses=0", "-k", "test_for_itself")
    assert code == 5
    assert "`make test-all` runs them" in output


@needs_lab
def test_the_service_is_tested_without_the_laboratory(tmp_path: Path) -> None:
    """All fast tests can be collected, and the documents, the layers and the help know what to expect."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().splitlines():
        if not name.startswith("lab/") and (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    blocked = (
        tmp_path / "blocked" / "sitecustomize.py"
    )  # where this checkout is installed, its laboratory is not
    blocked.parent.mkdir()
    blocked.write_text(
        f"import sys\nsys.path[:] = [path for path in sys.path if path != {str(ROOT / 'lab')!r}]\n"
    )
    paths = (blocked.parent, tmp_path, tmp_path / "agent", tmp_path / "controller")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    code, output = run_tests(
        tmp_path, "fast", "-q", "--numprocesses=0", "-k", "test_docs or test_help or test_layers", paths=paths
    )
    assert code == 0, output
    assert re.search(r"for lack of lab/ with \d\d+ references to it", output.splitlines()[-1]), output


def test_a_fast_test_that_starts_a_process_fails(tree: Path) -> None:
    """Whatever starts it: no list of fixtures or modules is whole."""
    (tree / "test_it.py").write_text(STARTING)
    code, output = run_tests(tree, "fast", "--numprocesses=0")
    assert code == 1, output
    assert "starts a process, so mark it `distributed` or `smoke`: ['true']" in output
    assert "1 failed, 1 passed" in output


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
