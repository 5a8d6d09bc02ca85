"""``make gpu``: steps are chosen, continued and killed; what they print becomes the file and the table."""

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import gpu
from tests.support.maths.backends import on
from tools.gpu import __main__ as program
from tools.gpu.figures import Figure, figures_in, machine_in, machine_line
from tools.gpu.launch import ON_ONE_GPU, RanksFailed, environment, run_ranks

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
        tests={"passed": 3, "failed": 1, "skipped": 0},
        failures={"test_a[nccl]": "assert 1 == 2"},
        tail="last ``` words",
    )
    steps = {
        "machine": result(machine={"device": "H"}),
        "topk": result(source="bb", figures=[asdict(figure) for figure in FIGURES]),
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
    assert "Not run: `make gpu STEP=loopback`." in shown
    assert shown.count("```") == 2  # the output cannot end the block
    assert next(iter(program.table({}, rehearsal=True))).startswith("# Rehearsal on a CPU")


def test_every_step_fits_a_command_of_ten_minutes_and_exists() -> None:
    assert all(seconds <= 590 for _, seconds in program.STEPS.values())
    assert all((ROOT / name).exists() for name in program.TESTS)
    assert set(program.STEPS) - {"tests"} == gpu.PARTS.keys()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``benchmarks.gpu`` is a program that runs what a file named like its step says; results go to ``tmp_path``."""
    fake = tmp_path / "fake" / "lab" / "benchmarks"
    fake.mkdir(parents=True)
    (fake / "gpu.py").write_text("import sys\nexec(open(sys.argv[2]).read())\n")
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setattr(program, "ROOT", tmp_path / "fake")
    monkeypatch.setattr(program, "SOURCES", ("lab",))
    monkeypatch.setattr(program, "environment", lambda: {"PYTHONPATH": str(tmp_path / "fake")})
    monkeypatch.setattr(program, "STEPS", {"good": ("", 60), "bad": ("", 60), "hanging": ("", 12)})
    return tmp_path


@pytest.mark.distributed
def test_steps_go_on_where_they_stopped(build: Path) -> None:
    """A step that hangs is killed with its children, a failed one runs again, and one that passed does not."""
    figure, facts = FIGURES[0].line(), machine_line({"device": "H"})
    for name, code in {
        "good": f"print({figure!r}); print({facts!r})",
        "bad": f"print({figure!r}); sys.exit('broken')",
        "hanging": "import subprocess, time; subprocess.Popen(['sleep', '77.7']); time.sleep(60)",
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
    assert first["bad"]["figures"] == [asdict(FIGURES[0])]
    assert "broken" in first["bad"]["tail"]
    assert "sleep 77.7" not in running()
    assert {file.name for file in copies.iterdir()} == {"gpu-rehearsal.json", "gpu-rehearsal.md", "gpu.log"}

    (build / "fake" / "bad").write_text("print('fine')")
    assert program.main(["--rehearse", "--step", "bad"]) == 0
    assert program.main(["--rehearse", "--step", "good", "--step", "bad"]) == 0
    assert found()["bad"]["state"] == "passed"
    assert found()["good"]["date"] == first["good"]["date"]  # it was not run again
    (build / "fake/lab/benchmarks/other.py").write_text("")
    assert program.main(["--rehearse", "--step", "good"]) == 0
    assert found()["good"]["source"] != first["good"]["source"]


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
    one, two = (environment(rank, 2, "cuda", 1234) for rank in range(2))
    assert one["NCCL_HOSTID"] != two["NCCL_HOSTID"]
    assert all(one[name] == value for name, value in ON_ONE_GPU.items())
    assert not {"NCCL_DEBUG_FILE", "GRAVAC_WINDOW"} & one.keys()
    assert not {"NCCL_HOSTID", *ON_ONE_GPU} & environment(0, 1, "cuda", 1234).keys()


@pytest.mark.distributed
def test_a_failed_rank_ends_the_others_and_its_output_is_shown() -> None:
    begun = time.monotonic()
    with pytest.raises(RanksFailed, match="does_not_exist"):
        run_ranks("tools.gpu.launch:does_not_exist", device="cpu", backend="gloo", world=2, seconds=60)
    assert time.monotonic() - begun < 50


@pytest.mark.parametrize("part", ["machine", "topk", "kernels"])
def test_parts_of_the_benchmark_work_on_the_cpu(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with on("reference"):  # and afterwards again what the caller chose
        gpu.main([part, "--device=cpu", "--small", "--pairs=1", "--lines"])
    lines = capsys.readouterr().out.splitlines()
    assert len(figures_in(lines)) == {"machine": 0, "topk": 26, "kernels": 20}[part]
    assert all(figure.value > 0 for figure in figures_in(lines))
    assert bool(machine_in(lines)) == (part == "machine")


def test_figures_from_before_a_rank_failed_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RanksFailed("a rank hangs", [f"{FIGURES[0].line()}\nTraceback …", ""])

    monkeypatch.setattr(gpu, "run_ranks", failing)
    with pytest.raises(RanksFailed, match="a rank hangs"):
        gpu.main(["loopback", "--device=cpu", "--small", "--lines"])
    assert figures_in(capsys.readouterr().out.splitlines()) == [FIGURES[0]]
