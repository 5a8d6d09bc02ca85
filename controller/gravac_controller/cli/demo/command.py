"""``gravac demo``: a real training on this machine, watched."""

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
from gravac_controller.cli.demo.figures import collect
from gravac_controller.cli.demo.summary import Result, show
from gravac_controller.cli.demo.training import Plan, Training, TrainingFailed
from gravac_controller.cli.demo.watch import Outcome, Watcher

STEPS = {"lm": 500, "digits": 300}
MODELS = {
    "lm": "an LSTM that learns the source text of Python's own standard library, byte by byte",
    "digits": "a small ResNet that learns scikit-learn's handwritten digits",
}
WIDTH = 132
"""Columns where there is no terminal to ask."""


def _policy(context: click.Context, option: click.Parameter, text: str) -> str:
    try:
        policies.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@click.option(
    "--task", type=click.Choice(list(STEPS)), default="lm", show_default=True, help="What to train."
)
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Processes to train on."
)
@click.option("--steps", type=click.IntRange(1), help="Training steps.  [default: lm 500, digits 300]")
@click.option(
    "--link",
    default="100mbit",
    show_default=True,
    metavar="RATE",
    help="Emulate a network of this rate between the ranks (100mbit, 1gbit), since loopback is too fast to need "
    "compression. none: no emulation, the truth about this machine.",
)
@click.option(
    "--policy",
    default="gravac",
    show_default=True,
    callback=_policy,
    help="Rule that decides: gravac, dense, static:cf=100, gravac:epsilon=0.3,ladder=geometric, …",
)
@click.option(
    "--window", type=click.IntRange(5), default=20, show_default=True, help="Steps between decisions."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**20), default=0, show_default=True, help="Of weights and data."
)
@click.option(
    "--compare", is_flag=True, help="Then train dense on the same link for the same steps, and show both."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gravac-runs"),
    envvar="GRAVAC_DATA_DIR",
    show_default=True,
    help="Folder for the trace.",
)
@click.option("--open/--no-open", "open_page", default=False, help="Open the live page in a browser.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object last, on stdout; the rest on stderr."
)
def demo(
    task: str,
    ranks: int,
    steps: int | None,
    link: str,
    policy: str,
    window: int,
    seed: int,
    compare: bool,
    data_dir: Path,
    open_page: bool,
    as_json: bool,
) -> None:
    """Train for real on this machine and watch the compression adapt.

    Starts the ranks with torchrun, prints the address of the live page first, and ends by itself with what was
    decided in each window and why, the held-out loss, the bytes, and the trace. About two minutes on two cores.

    \b
    Examples:
      gravac demo                      a 100 Mbit/s network, emulated
      gravac demo --compare            and the same training without compression
      gravac demo --link none          the truth on loopback: it stays dense, and says why
      gravac demo --policy static:cf=40
    """
    plan = Plan(
        task=task,
        ranks=ranks,
        steps=steps or STEPS[task],
        link=link,
        policy=policy,
        window=window,
        seed=seed,
        job=f"demo-{task}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
        data_dir=data_dir,
    )
    console = _console(as_json)
    with tempfile.TemporaryDirectory(prefix="gravac-demo-") as folder, _ended_by_sigterm():
        try:
            result = _train(plan, console, Path(folder), compare, open_page)
        except TrainingFailed as error:
            raise click.ClickException(str(error)) from None
        except TraceError as error:
            raise click.ClickException(
                f"the training is done, but its trace cannot be read: {error}"
            ) from None
        except KeyboardInterrupt:
            click.echo(
                f"Stopped; everything it started has ended. Traces so far are in {data_dir}.", err=True
            )
            sys.exit(130)
    console.print()
    show(result, console, _command())
    if as_json:
        click.echo(json.dumps(result.as_json()))


def _train(plan: Plan, console: Console, scratch: Path, compare: bool, open_page: bool) -> Result:
    network = (
        "this machine's loopback, not slowed" if plan.link == "none" else f"an EMULATED link of {plan.link}"
    )
    headline = f"Training   {MODELS[plan.task]}: {plan.ranks} ranks, {plan.steps} steps, over {network}"
    outcome = _watched(plan, console, scratch, headline, open_page)
    if outcome.trace is None:
        raise click.ClickException("the training is done, but the agent kept no trace")
    figures = collect(outcome.trace)
    if not compare:
        return Result(plan, outcome, figures)
    plain = plan.link == "none"
    other = replace(plan, job=f"{plan.job}-dense", policy="dense", plain=plain)
    what = "plain DDP, without the agent" if plain else "dense, over the same emulated link"
    console.print()
    dense = _watched(other, console, scratch, f"Comparing  the same training, {what}", False)
    return Result(plan, outcome, figures, dense, None if dense.trace is None else collect(dense.trace))


def _watched(plan: Plan, console: Console, scratch: Path, headline: str, open_page: bool) -> Outcome:
    with Watcher(console, plan, headline, open_page) as watcher, Training(plan, scratch) as training:
        for event in training.events():
            watcher.take(event)
    return watcher.outcome


def _console(as_json: bool) -> Console:
    console = Console(stderr=as_json, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command in order, with what it started, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command() -> str:
    """How gravac is called here, for a shell: by name where it is on the path, else as it was."""
    if shutil.which("gravac"):
        return "gravac"
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m {program.parent.name}"
    return shlex.quote(display_path(program))
