"""``gravac observe``: whether any training waits for its network, by some steps that it records, or by traces."""

import contextlib
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
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.whatif.question import KINDS, question
from gravac_controller.cli.wording import printer
from gravac_controller.server.running import IMPATIENT, Running
from gravac_observe import MOST_STEPS, RecordRequest
from gravac_observe.judged import ENDINGS, compare_verdicts, is_profile, judged, show, write_page

POLL_SECONDS = 0.2
LEFT_SECONDS = 1.0
"""Time in which helpers of a command, such as those of multiprocessing, end after it."""
NOT_RUN, NOT_FOUND = 126, 127
"""What a shell exits with where a command cannot be run, or there is none."""
ABOVE, CANNOT_SAY = 3, 4
"""Exit codes of ``--fail-above``: the exposed share is above it, or is not known."""


class _Observe(click.Command):
    """Takes options also behind files. Those behind the program of a command are the program's own."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse once to see what the first word is, then in its way. Keep the options for the process that judges."""
        found = self.make_parser(context).parse_args(args=list(args))[0].get("words")
        words = found if isinstance(found, tuple) else ()  # there are none
        context.obj = [word for word in args[: len(args) - len(words)] if word != "--"]
        context.allow_interspersed_args = any(map(is_profile, words[:1]))
        return super().parse_args(context, args)


def _folder_is_there(_context: click.Context, _option: click.Parameter, output: Path | None) -> Path | None:
    """Refuse a page in a folder that is missing, before anything is measured."""
    if output is not None and not output.absolute().parent.is_dir():
        raise CannotUse(printable(f"{output}: there is no folder {output.parent}"))
    return output


@click.command(cls=_Observe, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="FILES... | -- COMMAND...")
@click.option(
    "--steps", type=click.IntRange(1, MOST_STEPS), default=5, show_default=True, help="Steps to record."
)
@click.option(
    "--warmup",
    type=click.IntRange(1, 1_000_000),
    default=10,
    show_default=True,
    help="Steps before. The first ones build buckets, compile and allocate.",
)
@question
@click.option(
    "--compare",
    nargs=2,
    metavar="BEFORE AFTER",
    help="Run nothing: compare two kept runs, by folder, or by name where the traces stay.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_folder_is_there,
    help="Also write the verdict as one HTML page, with a timeline of a step.",
)
@click.option(
    "--fail-above",
    callback=quantities.single(quantities.percentage),
    metavar="PERCENT",
    help="Exit with 3 if more than this share of a step, such as 20%, is exposed communication, and with 4 if that "
    "cannot be said.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, at the end.")
def observe(
    words: tuple[str, ...],
    steps: int,
    warmup: int,
    compare: tuple[str, str] | None,
    output: Path | None,
    fail_above: float | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Run COMMAND, a training, and say in three lines whether it waits for its network, on what, and what to do next.

    The training is not changed, and its results are the same to the bit. torch's profiler records some steps on each
    rank, then nothing of it is left. The verdict appears on stderr once they are recorded. The exit code is COMMAND's,
    where that is not 0. The traces stay in the folder observe of GRAVAC_DATA_DIR, else of gravac-runs.

    With FILES, traces of PyTorch's profiler (.json or .json.gz, of one rank or of each, or folders of them), run
    nothing: judge those of any job.

    On several machines, put the same in front of the command of each. Rank 0's prints the verdict.

    \b
    Examples:
      gravac observe -- torchrun --nproc-per-node 8 train.py
      gravac observe --fail-above 20% --json -- torchrun --nproc-per-node 8 train.py
      gravac observe rank0.json.gz rank1.json.gz
      gravac observe one-gpu.json.gz --ranks 8 --link 25gbit
      gravac observe --steps 10 -o report.html -- python train.py
      gravac observe --compare train-20261126-213538-bd98 train-20261126-220112-04f1 -o both.html
    """
    optimizer = asked["optimizer"]
    bits, latency = asked["link"] or (None, None)
    wanted = {
        "bits_per_second": bits,
        "latency": latency,
        "ranks": asked["ranks"],
        "elements": asked["elements"],
        "kind": None if optimizer is None else KINDS[optimizer],
        "bound": asked["bound"],
    }
    if compare:
        if words:
            raise click.UsageError("--compare reads two kept runs and runs no command: leave the command out")
        if fail_above is not None:
            raise click.UsageError("--fail-above is for one run: give it the folder of that")
        _compare(compare, wanted, output, as_json)
    elif words and is_profile(words[0]):
        _read(words, wanted, output, as_json, fail_above)
    else:
        _run(words, steps, warmup, click.get_current_context().obj)


def _read(
    words: tuple[str, ...],
    wanted: dict[str, Any],
    output: Path | None,
    as_json: bool,
    fail_above: float | None,
) -> None:
    """Judge traces of files."""
    found = judged(words, **wanted)
    if as_json:
        click.echo(json.dumps(found.record()))
    else:
        show(found, printer())
    if output is not None:
        write_page([(Path(words[0]).name, found)], output)
    if fail_above is not None and (found.share is None or found.share > fail_above):
        sys.exit(CANNOT_SAY if found.share is None else ABOVE)


def _run(command: tuple[str, ...], steps: int, warmup: int, options: list[str]) -> None:
    """Run a training, record some of its steps, and let their traces be judged with the options."""
    if not command:
        raise click.UsageError(
            "give the command of a training: gravac observe -- torchrun … train.py, or traces of PyTorch's profiler"
        )
    first, *others = command
    if shutil.which(first) is None and "=" in first:
        raise click.UsageError(f"put {first} first: {first} gravac observe -- {shlex.join(others)}")
    if shutil.which(first) is None and " " in first:
        raise click.UsageError(f"leave out the quotes: gravac observe -- {first}")
    folder = _new_folder(command)
    running = _start(command, folder, steps, warmup)
    failed: int | None = None
    while (code := running.ended(POLL_SECONDS)) is None:
        if failed is None and "--json" not in options and (folder / "complete").exists():
            failed = _judge(folder, options, running)
    if failed is None:
        failed = _conclude(command, folder, options, running)
    for name in ("word", "said"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    running.close()
    sys.exit((code if code >= 0 else 128 - code) or (failed if "--fail-above" in options else 0))


def _compare(runs: tuple[str, str], wanted: dict[str, Any], output: Path | None, as_json: bool) -> None:
    """Show two kept runs beside each other."""
    kept = _kept()
    folders = [kept / run if (kept / run).is_dir() else Path(run) for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if not folder.exists():
            known = [each.name for each in kept.iterdir()] if kept.is_dir() else []
            where = f"nor such a run in {display_path(kept)}"
            raise CannotUse(printable(f"{run}: there is no such file, {where}{did_you_mean(run, known)}"))
    verdicts = [(folder.name, judged((str(folder),), **wanted)) for folder in folders]
    if as_json:
        click.echo(json.dumps({name: verdict.record() for name, verdict in verdicts}))
    else:
        compare_verdicts(verdicts, printer())
    if output is not None:
        write_page(verdicts, output)


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
    paths = [str(Path(__file__).parent / "record" / "inject"), os.environ.get("PYTHONPATH")]
    asked: RecordRequest = {"folder": str(folder), "steps": steps, "warmup": warmup}
    environment = {
        "KINETO_LOG_LEVEL": "99",  # torch 2.13 notes on stderr when its profiler starts
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "GRAVAC_OBSERVE": json.dumps(asked),
    }
    try:
        return Running(command, environment)
    except OSError as error:
        folder.rmdir()
        hint = f": gravac observe -- python {shlex.join(command)}" if command[0].endswith(".py") else ""
        click.echo(f"Error: {command[0]}: cannot be run: {error.strerror}{hint}", err=True)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN)


def _judge(folder: Path, options: list[str], running: Running) -> int:
    """Print the verdict on the traces of a folder, by a process that steps back behind a training that goes on.

    Once that has ended it takes its turn with others: on busy cores the least of all would wait for minutes. The
    terminal does not interrupt it with the program. Once that has ended, an interrupt ends it. It is not begun, or
    ended, where the job is ended from outside: what is left is soon killed.

    Returns:
        Its exit code.
    """
    command = [sys.executable, "-m", "gravac_controller", "observe", str(folder), *options]
    judging: subprocess.Popen[bytes] | None = None
    goes_on = running.ended(0.0) is None
    while (signaled := running.hurry) is None:
        judging = judging or subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=None if "--json" in options else sys.stderr.fileno(),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=(lambda: os.nice(19)) if goes_on else None,
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
    click.echo(f"{kept}: gravac observe {display_path(folder)}", err=True)
    return CANNOT_SAY if judging is None or judging.returncode is None else judging.returncode


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


def _conclude(command: tuple[str, ...], folder: Path, options: list[str], running: Running) -> int:
    """Judge what there is after the program has ended, or say why there is nothing. Return the exit code of that."""
    if any(each.name.endswith(ENDINGS) for each in folder.iterdir()):  # also one that is not packed
        return _judge(folder, options, running)
    signaled = [number for number in running.came if number in IMPATIENT]
    word, line = folder / "word", "no verdict: "
    if (folder / "sent").exists():
        line = "the traces of this machine went to rank 0, whose gravac observe judges"
    elif (folder / "said").exists():
        line = ""
    elif signaled:
        line += f"{signal.Signals(signaled[-1]).name} came before a step of an optimizer was recorded"
    elif going := _left(folder):
        click.echo(
            f"gravac observe: no verdict yet: `{shlex.join(command)}` has ended, but {', '.join(going)}, which it "
            "started, goes on. gravac waits for the command alone: keep it in the foreground. What was recorded at the "
            f"end can be judged with: gravac observe {display_path(folder)}",
            err=True,
        )
        return CANNOT_SAY
    elif not word.exists():
        line += (
            f"no process of `{shlex.join(command)}` imported torch.optim with the PYTHONPATH that gravac set, or none "
            "could write to the folder. Under python -I, -E or -S, in a container, or in a Ray cluster that runs "
            "already, call gravac.observe() in the script"
        )
    else:
        full = f"{folder} takes no more, not even a word why: is its disk full? Name another folder with {FOLDER}"
        line += word.read_text(encoding="utf-8") or full
    if line:
        click.echo(f"gravac observe: {line}", err=True)
    with contextlib.suppress(OSError):
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
    return CANNOT_SAY
