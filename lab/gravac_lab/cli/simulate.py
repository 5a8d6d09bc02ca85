"""``gravac simulate``: try a policy on a task without a cluster."""

import re
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gravac.wording import display_path, format_percent, format_rate, plan_in_words, printable
from gravac_controller.cli.source import journals_folder
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.whatif.show import delay
from gravac_controller.cli.wording import Listing, number, seconds, size
from gravac_lab.bench import simulated
from gravac_lab.bench.simulated import Simulation
from gravac_lab.cli import options, output

LONG_REASON = 400
"""Characters of a reason that are shown."""
LATENCY_SECONDS = 200e-6
"""Latency of a message between two ranks, as in a data center over TCP."""


def first_name(task: str) -> str:
    """Return what the names of the jobs begin with: the task and the time."""
    return f"simulate-{task.partition(':')[0]}-{time.strftime('%Y%m%d-%H%M%S')}"


def _link(text: str) -> tuple[int, float]:
    """``100mbit`` or ``100mbit@200``: first step and bits a second. Raises ValueError that shows the expected form."""
    bandwidth, at, step = text.partition("@")
    if at and not re.fullmatch(r"\d{1,9}", step):
        raise ValueError(f"{text!r}: {step!r} is not the number of a step; write for example 100mbit@200")
    return int(step or 0), quantities.bandwidth(bandwidth)


def _links(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> list[tuple[int, float]]:
    try:
        found = sorted(_link(text) for text in texts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    steps = [step for step, _ in found]
    if steps[0] != 0 or len(set(steps)) < len(steps):
        raise click.BadParameter(
            f"{' '.join(texts)}: give one link from the start, and each other one from a step of its own, such as "
            "--link 1gbit --link 100mbit@200"
        )
    return found


@click.command(name="simulate")
@click.option(
    "--task",
    default="lm",
    show_default=True,
    metavar="TASK",
    help="What is learned: lm, gpt, resnet, vgg, vit, logistic or digits, with settings as in gpt:size=3m.",
)
@click.option(
    "--policy",
    default="auto",
    show_default=True,
    metavar="POLICY",
    help="Policy to try: auto, gravac:epsilon=0.3, static:cf=100, …, or a plan.",
)
@click.option(
    "--against",
    multiple=True,
    default=("dense", "alone"),
    show_default=True,
    metavar="PLAN",
    help="Compare with a plan or another policy: dense, alone (no communication), CODEC@CF, "
    "CODEC@CF/MEMORY/COLLECTIVE. Repeatable; dense is always compared.",
)
@click.option(
    "--compressor",
    default="topk+bf16",
    show_default=True,
    metavar="CODEC",
    help="The job's codec, one of `gravac codecs`.",
)
@click.option("--ranks", type=click.IntRange(1, 64), default=4, show_default=True, help="Simulated ranks.")
@click.option(
    "--steps", type=click.IntRange(2, 1_000_000), default=300, show_default=True, help="Steps of each job."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**20),
    default=1,
    show_default=True,
    help="Seed of weights, data and codecs.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    default=("100mbit",),
    show_default=True,
    callback=_links,
    metavar="RATE[@STEP]",
    help="Bandwidth of each rank's link, and from which step on: --link 1gbit "
    "--link 100mbit@200. Repeatable.",
)
@click.option(
    "--compute",
    type=click.FloatRange(1e-6, 1e4),
    metavar="SECONDS",
    help="Computation of a step of one rank. Give it for times that can be repeated.  [default: measured here]",
)
@click.option(
    "--window",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="Steps between decisions.",
)
@options.as_json
def simulate(
    task: str,
    policy: str,
    against: tuple[str, ...],
    compressor: str,
    ranks: int,
    steps: int,
    seed: int,
    links: list[tuple[int, float]],
    compute: float | None,
    window: int,
    as_json: bool,
) -> None:
    """Try a policy on a task without a cluster.

    All ranks learn in one process, through the same codecs, error memories and aggregators as real ones, so the losses
    are real. Step times are predicted for the links of --link; the policy decides by them. Each job writes a journal
    to GRAVAC_DATA_DIR, else gravac-runs, that `gravac report` and `gravac replay` read like any other.

    Time to target is simulated time.

    \b
    Examples:
      gravac simulate --task lm --link 100mbit --ranks 4
      gravac simulate --task gpt --policy auto:bound=0.05 --against topk+bf16@10 --against alone
      gravac simulate --link 1gbit --link 100mbit@150 --link 1gbit@300 --steps 450 --compute 0.2
    """
    late = [step for step, _ in links if step >= steps]
    if late:
        raise click.BadParameter(
            f"step {late[0]} is not before the end, --steps {steps}", param_hint="--link"
        )
    simulation = Simulation(
        task=task,
        policy=policy,
        against=against,
        compressor=compressor,
        ranks=ranks,
        steps=steps,
        seed=seed,
        links=links,
        latency_seconds=LATENCY_SECONDS,
        compute_seconds=compute,
        window=window,
        data_dir=journals_folder(),
        name=first_name(task),
    )
    output.perform(lambda _, progress: simulated.simulate(simulation, progress), show, as_json)


def show(result: dict[str, Any], console: Console) -> None:
    """Print a row for each job, then which plans the policy used when, and why."""
    links = ", ".join(
        format_rate(link["bits_per_second"])
        + (f" from step {link['first_step']}" if link["first_step"] else "")
        for link in result["links"]
    )
    console.print(
        f"{printable(result['task'])} on {printable(result['data'])}, {result['elements']:,} parameters, "
        f"{result['optimizer']}; {result['ranks']} "
        f"simulated ranks, {result['steps']} steps, seed {result['seed']}; links of {links}, "
        f"{delay(result['latency_seconds'])}"
    )
    compute = result["compute_seconds"]
    how = (
        f"measured on this machine; --compute {compute:.3g} repeats it"
        if result["compute_measured"]
        else "given"
    )
    console.print(f"Computation of a step: {seconds(compute)} ({how}).")
    heads = ("Held-out loss", "Step", "In all", "To target", "Faster", "Payload", "Wire CF", "η", "Retained")
    leaving = ("Retained", "Wire CF", "In all", "Payload", "η")
    table = Listing(("Plan",), heads, leaving=leaving)
    for row in result["rows"]:
        table.add_row(
            printable(row["name"]),
            f"{row['loss']:.4f}",
            seconds(row["step_seconds"]),
            seconds(row["seconds"]),
            "not reached" if row["seconds_to_target"] is None else seconds(row["seconds_to_target"]),
            "–" if row["speedup"] is None else f"{row['speedup']:.2f}x",
            size(row["payload_bytes"]),
            number(row["wire_cf"]),
            number(row["efficiency"]),
            "–" if row["retained"] is None else f"{row['retained']:.0%}",
        )
    console.print(table)
    console.print(
        f"Times are simulated. Target: held-out loss {result['target_loss']:.4f}, that of dense after "
        f"{format_percent(result['target'])} of its steps. Step and payload: means. η: steps dense needs / steps the "
        "plan needs. Retained: share of what communication is worth.",
        style="dim",
    )
    for row in result["rows"]:
        if row["plans"] and row["name"] == result["policy"]:
            _plans(row, console)
    for row in result["rows"]:
        if row["trace"] is not None and row["name"] == result["policy"]:
            console.print(
                f"Journal: {display_path(Path(row['trace']))} (gravac report, gravac replay --check)"
            )


def _plans(row: dict[str, Any], console: Console) -> None:
    console.print(f"What {printable(row['name'])} sent:", style="bold")
    table = Listing(("From step", "Plan"), prose="Reason")
    for plan in row["plans"]:
        sent = plan_in_words(plan["codec"], plan["cf"])
        table.add_row(str(plan["first_step"]), sent, printable(plan["reason"], LONG_REASON))
    console.print(table)
