"""``make gpu``: steps are chosen, continued and killed; what they print becomes the file and the table."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tools.gpu import __main__ as program
from tools.gpu import step
from tools.gpu.figures import Figure, figures_in, machine_in, machine_line
from tools.gpu.launch import ON_ONE_GPU, RanksFailed, environment, run_ranks
from tools.gpu.measure import learning
from tools.gpu.measure.launches import SPAN, launches
from tools.gpu.outcomes import outcomes

ROOT = Path(__file__).parents[2]
FIGURES = [
    Figure(name="ratio", value=6.25, unit="x", low=6.0, high=6.5, least=5.0),
    Figure(name="host", value=1.5e-4, unit="s", most=1e-4),
    Figure(name="moved", value=2.5e9, unit="B/s"),
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


def result(state: str = "passed", source: str = "aa", **more: object) -> dict[str, object]:
    plain = {"seconds": 61.2, "date": "2026-11-23T10:00:00+00:00", "machine": {}, "figures": [], "tests": {}}
    return {"state": state, "source": source, "failures": {}, "tail": "", **plain, **more}


def test_results_are_shown() -> None:
    tests = result(
        "failed",
        tests={"passed": 3, "failed": 1, "skipped": 0, "unfinished": 0},
        failures={"test_a[nccl]": "assert 1 == 2"},
        tail="last ``` words",
    )
    steps = {
        "start": result(machine={"device": "H"}),
        "kernels": result(source="bb", figures=[asdict(figure) for figure in FIGURES]),
        "tests": tests,
    }
    shown = "\n".join(program.table(steps, rehearsal=False)) + "\n"
    assert "| device | H |\n" in shown
    assert "| ratio | 6.25x (6x to 6.5x) | at least 5x: yes |\n" in shown
    assert "| moved | 2.5 GB/s |  |\n" in shown
    assert (
        "version aa, 61 s: failed. Tests: 3 passed, 1 failed.\n- **test_a[nccl]**: assert 1 == 2\n" in shown
    )
    assert "version bb, 61 s: passed.\n" in shown
    assert "Not run: `make gpu STEP=gpt`." in shown
    assert shown.count("```") == 2  # the output cannot end the block
    assert next(iter(program.table({}, rehearsal=True))).startswith("# Rehearsal on a CPU")


def test_all_steps_fit_into_a_quarter_of_an_hour_and_exist() -> None:
    assert sum(seconds for _, seconds in program.STEPS.values()) <= 840
    assert all((ROOT / name).exists() for names in program.TESTS.values() for name in names)
    assert program.STEPS.keys() == program.TESTS.keys() | step.STEPS.keys()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``tools.gpu.step`` is a program that runs what a file named like its step says; results go to ``tmp_path``."""
    fake = tmp_path / "fake" / "tools" / "gpu"
    fake.mkdir(parents=True)
    for folder in (fake, fake.parent):
        (folder / "__init__.py").touch()
    (fake / "step.py").write_text("import sys\nexec(open(sys.argv[1]).read())\n")
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setattr(program, "ROOT", tmp_path / "fake")
    monkeypatch.setattr(program, "SOURCES", ("tools",))
    monkeypatch.setattr(program, "TESTS", {})
    monkeypatch.setattr(program, "environment", lambda: {"PYTHONPATH": str(tmp_path / "fake")})
    monkeypatch.setattr(program, "STEPS", {"good": ("", 60), "bad": ("", 60), "hanging": ("", 4)})
    return tmp_path


@pytest.mark.distributed
def test_steps_go_on_where_they_stopped(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step that hangs is killed with its children, a failed one runs again, and one that passed does not."""
    figure, facts = FIGURES[0].line(), machine_line({"device": "H"})
    for name, code in {
        "good": f"print({figure!r}); print({facts!r})",
        "bad": f"print({figure!r}); sys.exit('broken')",
        "hanging": f"print({figure!r}, flush=True); import subprocess, time; "
        "subprocess.Popen(['sleep', '77.7']); time.sleep(60)",
    }.items():
        (build / "fake" / name).write_text(code)

    def found() -> dict[str, Any]:
        data: dict[str, Any] = json.loads((build / "gpu-rehearsal.json").read_text())
        return data

    copies, begun = build / "copies", time.monotonic()
    assert program.main(["--rehearse", "--copy", str(copies)]) == 1
    assert time.monotonic() - begun < 30
    first = found()
    states = {name: step["state"] for name, step in first.items()}
    assert states == {"good": "passed", "bad": "failed", "hanging": "timed out"}
    assert first["good"]["machine"] == {"device": "H"}
    assert first["bad"]["figures"] == first["hanging"]["figures"] == [asdict(FIGURES[0])]
    assert "broken" in first["bad"]["tail"]
    assert "sleep 77.7" not in running()
    assert {file.name for file in copies.iterdir()} == {"gpu-rehearsal.json", "gpu-rehearsal.md", "gpu.log"}

    (build / "fake" / "bad").write_text("print('fine')")
    assert program.main(["--rehearse", "--step", "bad"]) == 0
    assert program.main(["--rehearse", "--step", "good", "--step", "bad"]) == 0
    assert found()["bad"]["state"] == "passed"
    assert found()["good"]["date"] == first["good"]["date"]  # it was not run again

    del first["good"]  # what was never tried comes before what failed
    (build / "gpu-rehearsal.json").write_text(json.dumps(first))
    capsys.readouterr()
    program.main(["--rehearse"])
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if " after " in line] == [
        "good",
        "bad",
        "hanging",
    ]
    (build / "fake/tools/gpu/other.py").write_text("")
    assert program.main(["--rehearse", "--step", "good"]) == 0
    assert found()["good"]["source"] != first["bad"]["source"]


@pytest.mark.distributed
def test_what_a_step_found_is_written_while_it_runs(build: Path) -> None:
    """Also where this program itself is killed in the middle of a step."""
    code = f"print({FIGURES[0].line()!r}, flush=True); print('figure {{', end='', flush=True)"
    code += "; import time; time.sleep(5)"
    (build / "fake" / "good").write_text(code)
    written: list[dict[str, Any]] = []
    program.run("good", {"PYTHONPATH": str(build / "fake")}, 60, True, written.append)
    assert [result["state"] for result in written][-2:] == ["interrupted", "passed"]
    assert written[-3]["figures"] == [asdict(FIGURES[0])]


BROKEN = """
import os, time, pytest
def test_good(): pass
def test_bad(): assert 1 == 2, 'why'
@pytest.fixture
def broken(): raise ValueError('at setup')
def test_broken(broken): pass
@pytest.fixture
def closing():
    yield
    raise ValueError('at the end')
def test_closing(closing): pass
@pytest.mark.skip
def test_skipped(): pass
def test_figure(record_property): record_property("figure", "figure {}")
def test_hanging(): time.sleep(60)
"""


@pytest.mark.distributed
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_of_tests_loses_no_name(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_some.py").write_text(BROKEN)
    (tmp_path / "test_worse.py").write_text("import not_there_at_all")
    file = tmp_path / "outcomes"
    options = [f"-n{workers}", "-p", "tools.gpu.outcomes", f"--outcomes={file}", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", *options, "--continue-on-collection-errors", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    until = time.monotonic() + 60
    while '_some.py::test_hanging", "begun"' not in (file.read_text() if file.exists() else ""):
        assert time.monotonic() < until, process.poll()
        time.sleep(0.1)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    numbers, failures = outcomes(file)
    assert numbers == {"passed": 2, "failed": 4, "skipped": 1, "unfinished": 1}
    said = {name.rpartition("::")[2]: why for name, why in failures.items()}
    assert said["test_bad"].startswith("AssertionError: why")
    assert "at setup" in said["test_broken"]
    assert "at the end" in said["test_closing"]
    assert said["test_hanging"] == "did not end"
    assert any("test_worse.py" in name for name in said)
    assert "\nfigure {}\n" in output


COUNTS = {"start": 4, "host": 42, "cost": 14, "observe": 4, "kernels": 83}


@pytest.mark.distributed
@pytest.mark.parametrize("name", [name for name in program.STEPS if name not in program.TESTS])
def test_a_step_that_is_no_test_runs_on_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its program, in small, as ``make gpu`` starts it."""
    monkeypatch.setattr(program, "BUILD", tmp_path)
    assert program.main(["--rehearse", "--step", name]) == 0, (tmp_path / "gpu.log").read_text()[-4000:]
    (found,) = json.loads((tmp_path / "gpu-rehearsal.json").read_text()).values()
    figures = [Figure(**figure) for figure in found["figures"]]
    assert all(math.isfinite(figure.value) for figure in figures)
    if name == "start":
        assert found["machine"]["torch"]
    if name == "gpt":  # how many depends on how fast it is
        losses = [figure for figure in figures if "held-out loss" in figure.name]
        assert {figure.name.partition(":")[0] for figure in losses} == {side.name for side in learning.SIDES}
        assert sum(" / ours" in figure.name for figure in figures) == 2
    else:
        assert len(figures) == COUNTS[name]
    if name == "host":
        assert [figure.value for figure in figures if figure.name.endswith("buckets")] == [6.0] * 7


def test_launches_are_counted_in_spans() -> None:
    """Written by hand, with the names that torch's profiler gives to calls."""

    def event(category: str, name: str, at: float, seconds: float = 1.0) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": seconds}

    spans = [event("user_annotation", SPAN, 200.0, 50.0), event("user_annotation", SPAN, 100.0, 50.0)]
    calls = [
        event("cuda_runtime", "cudaLaunchKernel", 90.0),
        event("cuda_driver", "cuLaunchKernelEx", 110.0),
        event("cuda_runtime", "cudaMemcpyAsync", 120.0),
        event("cuda_runtime", "cudaEventRecord", 125.0),
        event("kernel", "cudaLaunchKernel", 126.0),
        event("cuda_runtime", "cudaMemsetAsync", 249.0),
    ]
    assert launches({"traceEvents": [*spans, *calls, {"ph": "M", "name": "process_name"}]}) == [2, 1]


def test_packages_that_are_missing_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "BUILD", tmp_path)
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
    one, two = (environment(rank, 2, "cuda") for rank in range(2))
    assert one["NCCL_HOSTID"] != two["NCCL_HOSTID"]
    assert all(one[name] == value for name, value in ON_ONE_GPU.items())
    assert not {"NCCL_DEBUG_FILE", "GRAVAC_WINDOW"} & one.keys()
    assert not {"NCCL_HOSTID", *ON_ONE_GPU} & environment(0, 1, "cuda").keys()


@pytest.mark.distributed
def test_a_failed_rank_ends_the_others_and_its_output_is_shown() -> None:
    begun = time.monotonic()
    with pytest.raises(RanksFailed, match="does_not_exist"):
        run_ranks("tools.gpu.launch:does_not_exist", device="cpu", backend="gloo", world=2, seconds=60)
    assert time.monotonic() - begun < 50


def test_figures_from_before_a_rank_failed_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RanksFailed("a rank hangs", [f"{FIGURES[0].line()}\nTraceback …", ""])

    monkeypatch.setattr(step, "run_ranks", failing)
    with pytest.raises(RanksFailed, match="a rank hangs"):
        step.main(["gpt", "--device=cpu", "--small"])
    assert figures_in(capsys.readouterr().out.splitlines()) == [FIGURES[0]]
