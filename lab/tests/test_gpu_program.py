"""``make gpu``: steps are chosen, continued and killed; what they print becomes the file and the table."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.benchmarks import cuda
from tests.support.maths.backends import on
from tools.gpu import __main__ as program
from tools.gpu.figures import Figure, figures_in, machine_in, machine_line
from tools.gpu.launch import ON_ONE_GPU, RanksFailed, environment, run_ranks
from tools.gpu.results import Result, Results, load, save, table
from tools.gpu.steps import STEPS, Step
from tools.gpu.trace import SPAN, waits

ROOT = Path(__file__).parents[2]
FIGURES = [
    Figure(name="ratio", value=6.25, unit="x", low=6.0, high=6.5, least=5.0),
    Figure(name="host", value=1.5e-4, unit="s", most=1e-4),
    Figure(name="moved", value=2.5e9, unit="B/s", note="a copy"),
    Figure(name="buckets", value=12.0),
]


def running() -> list[str]:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found.append(" ".join(path.read_text(errors="replace").split("\0")).strip())
    return found


def test_figures_survive_as_lines() -> None:
    lines = [
        "noise",
        *(figure.line() for figure in FIGURES),
        "figured out",
        machine_line({"torch": "2.11.0"}),
    ]
    assert figures_in(lines) == FIGURES
    assert machine_in(lines) == {"torch": "2.11.0"}


def test_figures_are_written_with_units_and_targets() -> None:
    assert [figure.text() for figure in FIGURES] == ["6.25x (6x to 6.5x)", "150 µs", "2.5 GB/s", "12"]
    assert [figure.target() for figure in FIGURES] == ["at least 5x: yes", "at most 100 µs: **no**", "", ""]
    assert Figure(name="share", value=31.0, unit="%").text() == "31 %"
    assert Figure(name="held", value=0.0, unit="B").text() == "0 B"


def result(state: str = "passed", source: str = "aa") -> Result:
    return Result(state=state, seconds=61.2, date="2026-11-23T10:00:00+00:00", source=source)  # type: ignore[arg-type]


def test_results_are_kept_and_shown(tmp_path: Path) -> None:
    tests = result("failed")
    tests.tests, tests.failures = {"passed": 3, "failed": 1, "skipped": 0}, {"test_a[nccl]": "assert 1 == 2"}
    tests.tail = "last ``` words"
    figures = result(source="bb")
    figures.figures = FIGURES
    results = Results(False, {"device": "H"}, {"topk": figures, "one-rank": tests})
    files = tmp_path / "new" / "gpu.json", tmp_path / "new" / "gpu.md"
    save(results, *files)
    assert load(files[0], rehearsal=False) == results
    shown = files[1].read_text()
    assert "| ratio | 6.25x (6x to 6.5x) | at least 5x: yes |\n" in shown
    assert "| moved (a copy) | 2.5 GB/s |  |\n" in shown
    assert (
        "2026-11-23, 61 s: failed. Tests: 3 passed, 1 failed.\n- **test_a[nccl]**: assert 1 == 2\n" in shown
    )
    assert "Not run: `make gpu STEP=loopback`." in shown
    assert "different versions of the program" in shown
    assert shown.count("```") == 2  # the output cannot end the block
    with pytest.raises(SystemExit, match="or of a rehearsal: move it away"):
        load(files[0], rehearsal=True)


def test_a_rehearsal_says_so() -> None:
    assert next(iter(table(Results(True)))).startswith("# Rehearsal on a CPU")


def test_every_step_fits_a_command_of_ten_minutes_and_exists() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    for step in STEPS:
        assert step.seconds < 590
        if step.kind == "tests":
            assert (ROOT / step.arguments[0]).exists()
    assert {step.name for step in STEPS if step.kind == "figures"} == cuda.PARTS.keys()


def a_step(name: str, code: str, kind: str = "figures", seconds: int = 60) -> Step:
    return Step(name, name.title(), kind, (code,), (code,), seconds)  # type: ignore[arg-type]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``benchmarks.cuda`` is a program that runs its last argument; results go to a folder of the test."""
    fake = tmp_path / "fake"
    (fake / "lab" / "benchmarks").mkdir(parents=True)
    (fake / "lab" / "benchmarks" / "cuda.py").write_text("import sys\nexec(sys.argv[-1])\n")
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setattr(program, "ROOT", fake)
    monkeypatch.setattr(program, "SOURCES", ("lab",))
    monkeypatch.setattr(program, "environment", lambda: {"PYTHONPATH": str(fake)})
    return tmp_path


@pytest.mark.distributed
def test_steps_go_on_where_they_stopped(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that hangs is killed with its children, a failed one runs again, and one that passed does not."""
    figure, facts = FIGURES[0].line(), machine_line({"device": "H"})
    left = "import subprocess, time; subprocess.Popen(['sleep', '77.7']); time.sleep(60)"
    steps = (
        a_step("good", f"print({figure!r}); print({facts!r})"),
        a_step("bad", f"print({figure!r}); sys.exit('broken')"),
        a_step("hanging", left, seconds=2),
    )
    monkeypatch.setattr(program, "STEPS", steps)
    copies = build / "copies"
    begun = time.monotonic()
    assert program.main(["--rehearse", "--copy", str(copies)]) == 1
    assert time.monotonic() - begun < 30
    found = load(build / "gpu-rehearsal.json", rehearsal=True)
    assert {name: one.state for name, one in found.steps.items()} == {
        "good": "passed",
        "bad": "failed",
        "hanging": "timed out",
    }
    assert found.machine == {"device": "H"}
    assert found.steps["bad"].figures == [FIGURES[0]]
    assert "broken" in found.steps["bad"].tail
    assert "sleep 77.7" not in running()
    assert {file.name for file in copies.iterdir()} == {"gpu-rehearsal.json", "gpu-rehearsal.md", "gpu.log"}

    mended = a_step("bad", "print('fine')")
    monkeypatch.setattr(program, "STEPS", (steps[0], mended))
    date = found.steps["good"].date
    assert program.main(["--rehearse", "--step", "bad"]) == 0
    assert program.main(["--rehearse"]) == 0
    again = load(build / "gpu-rehearsal.json", rehearsal=True)
    assert again.steps["bad"].state == "passed"
    assert again.steps["good"].date == date  # it was not run again
    assert program.main(["--rehearse", "--seconds", "5", "--again"]) == 0  # no time for any
    (build / "fake/lab/benchmarks/other.py").write_text("")
    assert program.main(["--rehearse", "--step", "good"]) == 0
    assert (
        load(build / "gpu-rehearsal.json", rehearsal=True).steps["good"].source != found.steps["good"].source
    )


@pytest.mark.distributed
def test_outcomes_of_tests(tmp_path: Path) -> None:
    """As pytest writes them."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2, 'why'\n"
        "@pytest.fixture\ndef broken(): raise ValueError('at setup')\n"
        "def test_broken(broken): pass\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--junitxml=report.xml",
        "-p",
        "no:cacheprovider",
        "test_some.py",
    ]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    numbers, failures = program.outcomes(tmp_path / "report.xml")
    assert numbers == {"passed": 1, "failed": 2, "skipped": 1}
    assert failures["test_bad"].startswith("AssertionError: why")
    assert "at setup" in failures["test_broken"]


def test_packages_that_are_missing_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WHEELS", tmp_path)
    monkeypatch.setattr(program, "NEEDED", ("not_there_at_all",))
    with pytest.raises(SystemExit, match=r"lacks not_there_at_all, and .* is empty: run `make gpu-wheels`"):
        program.environment()


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"needs a CUDA GPU, and torch .* sees none: ARGS=--rehearse"):
        program.main([])


def test_ranks_on_one_gpu_have_hosts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/somewhere")
    monkeypatch.setenv("GRAVAC_WINDOW", "3")
    one, two = (environment(rank, 2, "cuda", 1234) for rank in range(2))
    assert one["NCCL_HOSTID"] != two["NCCL_HOSTID"]
    assert all(one[name] == value for name, value in ON_ONE_GPU.items())
    assert not {"NCCL_DEBUG_FILE", "GRAVAC_WINDOW"} & one.keys()
    assert not {"NCCL_HOSTID", *ON_ONE_GPU} & environment(0, 1, "cuda", 1234).keys()


def test_a_failed_rank_ends_the_others_and_its_output_is_shown() -> None:
    begun = time.monotonic()
    with pytest.raises(RanksFailed, match="does_not_exist"):
        run_ranks("tools.gpu.launch:does_not_exist", device="cpu", backend="gloo", world=2, seconds=60)
    assert time.monotonic() - begun < 50


@pytest.mark.parametrize("part", ["machine", "topk", "kernels"])
def test_parts_of_the_benchmark_work_on_the_cpu(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with on("reference"):  # and afterwards again what the caller chose
        cuda.main([part, "--device=cpu", "--small", "--pairs=1", "--lines"])
    lines = capsys.readouterr().out.splitlines()
    assert len(figures_in(lines)) == {"machine": 0, "topk": 26, "kernels": 20}[part]
    assert all(figure.value > 0 for figure in figures_in(lines))
    assert bool(machine_in(lines)) == (part == "machine")


def test_figures_from_before_a_rank_failed_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RanksFailed("a rank hangs", [f"{FIGURES[0].line()}\nTraceback …", ""])

    monkeypatch.setattr(cuda, "run_ranks", failing)
    with pytest.raises(RanksFailed, match="a rank hangs"):
        cuda.main(["loopback", "--device=cpu", "--small", "--lines"])
    assert figures_in(capsys.readouterr().out.splitlines()) == [FIGURES[0]]


def event(category: str, name: str, at: float, **arguments: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": 1.0, "args": arguments}


def test_a_profile_is_read() -> None:
    """Written by hand, with the names that torch's profiler gives to calls and copies."""
    span = {**event("user_annotation", SPAN, 100.0), "dur": 50.0}
    tick = [
        event("cuda_runtime", "cudaMemcpyAsync", 120.0, correlation=7),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 160.0, correlation=7, bytes=312),
    ]
    later = [
        event("cuda_runtime", "cudaMemcpyAsync", 151.0, correlation=8),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 165.0, correlation=8, bytes=9000),
        event("cuda_runtime", "cudaStreamSynchronize", 152.0, correlation=9),
        event("cuda_runtime", "cudaEventSynchronize", 153.0, correlation=10),
    ]
    quiet = {"traceEvents": [span, *tick, *later, {"ph": "M", "name": "process_name"}]}
    assert waits(quiet) == {"waits": {}, "events": 0, "copies": [312], "large": 0, "synchronous": 0}
    loud = [{**one, "ts": float(str(one["ts"])) - 10.0} for one in later]
    found = waits({"traceEvents": [span, *tick, *loud]})
    assert found == {
        "waits": {"cudaStreamSynchronize": 1},
        "events": 1,
        "copies": [9000, 312],
        "large": 1,
        "synchronous": 1,
    }
    with pytest.raises(ValueError, match="has no span"):
        waits({"traceEvents": tick})


def test_the_file_is_json_with_a_format(tmp_path: Path) -> None:
    save(Results(False, {}, {"topk": result()}), tmp_path / "a.json", tmp_path / "a.md")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["format"] == 1
    assert data["steps"]["topk"]["state"] == "passed"
