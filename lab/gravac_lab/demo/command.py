"""``gravac demo``: run and watch a real training on this machine."""

import json
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console

from gravac import policies
from gravac.traces import TraceError
from gravac.wording import display_path
from gravac_controller.cli.source import journals_folder
from gravac_lab.demo.figures import collect
from gravac_lab.demo.page import keep_until_enter
from gravac_lab.demo.summary import Result, show
from gravac_lab.demo.training import DemoPlan, Training, TrainingFailed
from gravac_lab.demo.watch import TrainingOutcome, Watcher

STEPS = {"lm": 500, "digits": 300}
MODELS = {
    "lm": "an LSTM on the source text of Python's standard library, byte by byte",
    "digits": "a small ResNet on scikit-learn's handwritten digits",
}
WIDTH = 132
"""Columns where there is no terminal."""


def _policy(context: click.Context, option: click.Parameter, text: str) -> str:
    try:
        policies.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@click.option(
    "--task", type=click.Choice(list(STEPS)), default="lm", show_default=True, help="Model and data."
)
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Number of processes."
)
@click.option("--steps", type=click.IntRange(1), help="Training steps.  [default: lm 500, digits 300]")
@click.option(
    "--link",
    default="100mbit/20mbit",
    show_default=True,
    metavar="RATE[/RATE]",
    help="Emulate a network of this bandwidth between the ranks (100mbit, 1gbit), because loopback is too fast to need "
    "compression; from the middle of the training on of the second one. none: no emulation.",
)
@click.option(
    "--policy",
    default="auto",
    show_default=True,
    callback=_policy,
    help="Policy: auto:bound=0.05, gravac, dense, static:cf=100, …",
)
@click.option(
    "--compare", is_flag=True, help="Then repeat the training dense, on the same link, and compare."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object on stdout at the end, and everything else on stderr.",
)
def demo(
    task: str,
    ranks: int,
    steps: int | None,
    link: str,
    policy: str,
    compare: bool,
    as_json: bool,
) -> None:
    """Train a small model on this machine and watch the compression adapt.

    Starts the ranks with torchrun and prints the address of the live page. In the middle the emulated network becomes
    slower, and the plan follows. At the end it prints what was sent and why, the held-out loss beside that of dense
    training, the bytes, and the path of the trace in GRAVAC_DATA_DIR, else gravac-runs; in a terminal the page stays
    until Enter. About two minutes on two cores.

    \b
    Examples:
      gravac demo                      a network of 100 Mbit/s, then of 20 Mbit/s, emulated
      gravac demo --compare            and the same training without compression
      gravac demo --link none          the real loopback: it leaves gradients uncompressed and says why
      gravac demo --policy static:cf=40
    """
    plan = DemoPlan(
        task=task,
        ranks=ranks,
        steps=steps or STEPS[task],
        link=link,
        policy=policy,
        job=f"demo-{task}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
        data_dir=journals_folder(),
    )
    console = _console(as_json)
    with tempfile.TemporaryDirectory(prefix="gravac-demo-") as folder, _ended_by_sigterm():
        try:
            result = _train(plan, console, Path(folder), compare)
        except TrainingFailed as error:
            raise click.ClickException(str(error)) from None
        except TraceError as error:
            raise click.ClickException(
                f"the training is done, but its trace cannot be read: {error}"
            ) from None
        except KeyboardInterrupt:
            click.echo(
                f"Stopped, with all processes it had started. The traces so far are in {plan.data_dir}.",
                err=True,
            )
            sys.exit(130)
    console.print()
    show(result, console, _command())
    if as_json:
        click.echo(json.dumps(result.as_json()))
    elif console.is_terminal and sys.stdin.isatty() and result.outcome.url is not None:
        keep_until_enter(result.outcome.url, plan.data_dir)


def _train(plan: DemoPlan, console: Console, scratch: Path, compare: bool) -> Result:
    first, _, second = plan.link.partition("/")
    later = f", from step {plan.steps // 2} on {second}" if second else ""
    network = (
        "this machine's loopback, without emulation"
        if plan.link == "none"
        else f"an EMULATED link of {first}{later}"
    )
    headline = f"Starting   {MODELS[plan.task]}: {plan.ranks} processes, {plan.steps} steps, over {network}"
    outcome = _watched(plan, console, scratch, headline)
    if outcome.trace is None:
        raise click.ClickException("the training is done, but the agent wrote no trace")
    figures = collect(outcome.trace, plan.steps // 2 if second else None)
    if not compare:
        return Result(plan, outcome, figures)
    plain = plan.link == "none"
    other = replace(plan, job=f"{plan.job}-dense", policy="dense", plain=plain)
    what = "plain DDP, without the agent" if plain else "dense, over the same emulated link"
    console.print()
    dense = _watched(other, console, scratch, f"Comparing  the same training, {what}")
    return Result(plan, outcome, figures, dense, None if dense.trace is None else collect(dense.trace))


def _watched(plan: DemoPlan, console: Console, scratch: Path, headline: str) -> TrainingOutcome:
    with Watcher(console, plan, headline) as watcher, Training(plan, scratch) as training:
        for event in training.events():
            watcher.handle(event)
    return watcher.outcome


def _console(as_json: bool) -> Console:
    console = Console(stderr=as_json, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM end the command and the processes it has started, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command() -> str:
    """How to run gravac in this shell: by name where it is on the path, else as it was called."""
    if shutil.which("gravac"):
        return "gravac"
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m {program.parent.name}"
    return shlex.quote(display_path(program))
