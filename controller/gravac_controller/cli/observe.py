"""``gravac observe``: whether any training waits for its network, from some of its steps, without a change to it."""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from gravac.traces.own_files import make_folder
from gravac.wording import did_you_mean, display_path, printable
from gravac_controller.cli.source import FOLDER, CannotUse, journals_folder
from gravac_controller.cli.whatif import profile
from gravac_controller.cli.wording import printer
from gravac_controller.server.running import IMPATIENT, Running

POLL_SECONDS = 0.2
LEFT_SECONDS = 1.0
"""Time in which helpers of a command, such as those of multiprocessing, end after it."""
NOT_RUN, NOT_FOUND = 126, 127
"""What a shell exits with where a command cannot be run, or there is none."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=5, show_default=True, help="Steps that are recorded."
)
@click.option(
    "--warmup",
    type=click.IntRange(1, 1_000_000),
    default=10,
    show_default=True,
    help="Steps before. The first ones build buckets, compile and allocate.",
)
@profile.elsewhere
@click.option(
    "--compare",
    nargs=2,
    metavar="BEFORE AFTER",
    help="Run nothing: compare two kept runs, by folder, or by name where the traces stay.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, at the end.")
def observe(
    command: tuple[str, ...],
    steps: int,
    warmup: int,
    link: float | None,
    ranks: int | None,
    codec_speed: float | None,
    output: Path | None,
    compare: tuple[str, str] | None,
    as_json: bool,
) -> None:
    """Run COMMAND, a training, and say in three lines whether it waits for its network, on what, and what to do next.

    The training is not changed, and its results are the same to the bit. torch's profiler records some steps on each
    rank, then nothing of it is left. The verdict appears on stderr once they are recorded. The exit code is COMMAND's.
    The traces stay in the folder observe of GRAVAC_DATA_DIR, else of gravac-runs.

    On several machines, put the same in front of the command of each. Rank 0's prints the verdict.

    \b
    Examples:
      gravac observe -- torchrun --nproc-per-node 8 train.py
      gravac observe --steps 10 -o report.html -- python train.py
      gravac observe --compare train-20261126-213538-bd98 train-20261126-220112-04f1 -o both.html
    """
    question = {
        "bits_per_second": link,
        "ranks": ranks,
        "codec_bytes": None if codec_speed is None else 1e9 * codec_speed,
    }
    if compare:
        if command:
            raise click.UsageError("--compare reads two kept runs and runs no command: leave the command out")
        _compare(compare, question, output, as_json)
        return
    if not command:
        raise click.UsageError("give the command of a training: gravac observe -- torchrun … train.py")
    first, *others = command
    if shutil.which(first) is None and "=" in first:
        raise click.UsageError(f"put {first} first: {first} gravac observe -- {shlex.join(others)}")
    if shutil.which(first) is None and " " in first:
        raise click.UsageError(f"leave out the quotes: gravac observe -- {first}")
    questions = [
        *(() if link is None else ("--link", f"{link:.0f}bit")),
        *(() if ranks is None else ("--ranks", str(ranks))),
        *(() if codec_speed is None else ("--codec-speed", str(codec_speed))),
        *(() if output is None else ("--output", str(output.absolute()))),
        *(("--json",) if as_json else ()),
    ]
    folder = _new_folder(command)
    running = _start(command, folder, steps, warmup)
    judged = False
    while (code := running.ended(POLL_SECONDS)) is None:
        if not judged and not as_json and (folder / "complete").exists():
            judged = True
            _judge(folder, questions, running)
    if not judged:
        _conclude(command, folder, questions, running)
    for name in ("word", "said"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    running.close()
    sys.exit(code if code >= 0 else 128 - code)


def _compare(runs: tuple[str, str], question: dict[str, Any], output: Path | None, as_json: bool) -> None:
    """Show two kept runs beside each other."""
    kept = _kept()
    folders = [kept / run if (kept / run).is_dir() else Path(run) for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if not folder.exists():
            known = [each.name for each in kept.iterdir()] if kept.is_dir() else []
            where = f"nor such a run in {display_path(kept)}"
            raise CannotUse(printable(f"{run}: there is no such file, {where}{did_you_mean(run, known)}"))
    verdicts = [(folder.name, profile.judged((str(folder),), **question)) for folder in folders]
    if as_json:
        click.echo(json.dumps({name: verdict.record() for name, verdict in verdicts}))
    else:
        profile.compare(verdicts, printer())
    if output is not None:
        profile.write_page(verdicts, output)


def _kept() -> Path:
    return journals_folder().absolute() / "observe"


def _new_folder(command: tuple[str, ...]) -> Path:
    """Make the folder of this run, named after the script, as journals are."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(script).stem)[:40]
    name = stem + time.strftime("-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    folder = _kept() / name
    try:
        make_folder(folder)
    except OSError as error:
        raise CannotUse(
            f"{folder}: cannot be made: {error.strerror}. Name another folder with {FOLDER}"
        ) from None
    return folder


def _start(command: tuple[str, ...], folder: Path, steps: int, warmup: int) -> Running:
    """Start the program so that its trainers record."""
    agent = importlib.util.find_spec("gravac_agent")
    assert agent is not None
    assert agent.submodule_search_locations is not None
    paths = [f"{next(iter(agent.submodule_search_locations))}/observe/inject", os.environ.get("PYTHONPATH")]
    environment = {
        "KINETO_LOG_LEVEL": "99",  # torch 2.13 notes on stderr when its profiler starts
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "GRAVAC_OBSERVE": json.dumps({"folder": str(folder), "steps": steps, "warmup": warmup}),
    }
    try:
        return Running(command, environment)
    except OSError as error:
        folder.rmdir()
        hint = f": gravac observe -- python {shlex.join(command)}" if command[0].endswith(".py") else ""
        click.echo(f"Error: {command[0]}: cannot be run: {error.strerror}{hint}", err=True)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN)


def _judge(folder: Path, questions: list[str], running: Running) -> None:
    """Print the verdict on the traces of a folder, by a process that steps back behind all others.

    The terminal does not interrupt it with the program. Once that has ended, an interrupt ends it. It is not begun, or
    ended, where the job is ended from outside: what is left is soon killed.
    """
    command = [sys.executable, "-m", "gravac_controller", "doctor", "--profile", str(folder), *questions]
    judging: subprocess.Popen[bytes] | None = None
    while (signaled := running.hurry) is None:
        judging = judging or subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=None if "--json" in questions else sys.stderr.fileno(),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: os.nice(19),
            process_group=0,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            judging.wait(POLL_SECONDS)
            break
    else:
        if judging is not None:
            judging.kill()
    kept = "The traces are kept. To ask more of them"
    if signaled is not None:
        name = signal.Signals(signaled).name
        kept = f"gravac observe: no verdict yet: {name} came. The traces are kept. To judge them"
    click.echo(f"{kept}: gravac doctor --profile {display_path(folder)}", err=True)


def _left(folder: Path) -> list[str]:
    """Return the processes that still run for a folder: such as daemons, which their command did not wait for."""
    until = time.monotonic() + LEFT_SECONDS
    while found := [each for each in Path("/proc").glob("[0-9]*") if _records(each, folder)]:
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    return [each.name for each in found]


def _records(process: Path, folder: Path) -> bool:
    try:
        return json.dumps(str(folder)).encode() in (process / "environ").read_bytes()
    except OSError:  # it has ended, or is someone else's
        return False


def _conclude(command: tuple[str, ...], folder: Path, questions: list[str], running: Running) -> None:
    """Judge what there is after the program has ended, or say why there is nothing."""
    if any(each.name.endswith(profile.ENDINGS) for each in folder.iterdir()):  # also one that is not packed
        _judge(folder, questions, running)
        return
    signaled = [number for number in running.came if number in IMPATIENT]
    if (folder / "sent").exists():
        click.echo(
            "gravac observe: the traces of this machine went to rank 0, whose gravac observe judges", err=True
        )
    elif not (folder / "said").exists() and signaled:
        name = signal.Signals(signaled[-1]).name
        click.echo(
            f"gravac observe: no verdict: {name} came before a step of an optimizer was recorded", err=True
        )
    elif not (folder / "said").exists() and (going := _left(folder)):
        click.echo(
            f"gravac observe: no verdict yet: `{shlex.join(command)}` has ended, but {', '.join(going)}, which it "
            "started, goes on. gravac waits for the command alone: keep it in the foreground. What was recorded at the "
            f"end can be judged with: gravac doctor --profile {display_path(folder)}",
            err=True,
        )
        return
    elif not (folder / "said").exists():
        word = folder / "word"
        why = word.read_text(encoding="utf-8") if word.exists() else None
        if why is None:
            why = (
                f"no process of `{shlex.join(command)}` imported torch.optim with the PYTHONPATH that gravac set, or "
                "none could write to the folder. Under python -I, -E or -S, in a container, or in a Ray cluster that "
                "runs already, call gravac.observe() in the script"
            )
        elif not why:
            why = f"{folder} takes no more, not even a word why: is its disk full? Name another folder with {FOLDER}"
        click.echo(f"gravac observe: no verdict: {why}", err=True)
    with contextlib.suppress(OSError):
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
