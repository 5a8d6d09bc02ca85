"""``gravac bench``: measure methods against each other."""

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gravac_controller.bench import rate
from gravac_controller.bench.train import Benchmark, run
from gravac_controller.cli.wording import seconds, size

METHODS = "none dense fp16 powersgd:1 agent/topk+bf16//static:cf=100"
FORMS = ("none", "dense", "fp16", "powersgd:", "agent")


@click.group()
def bench() -> None:
    """Measure on this machine."""


def _link(context: click.Context, option: click.Parameter, text: str) -> str:
    try:
        rate.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def _methods(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    methods = tuple(text.split())
    for method in methods:
        if not method.startswith(FORMS):
            raise click.BadParameter(f"{method!r} is none of none, dense, fp16, powersgd:RANK, agent/…")
    if len(set(methods)) < len(methods) or not methods:
        raise click.BadParameter("give every method once, separated by spaces")
    return methods


@bench.command()
@click.option(
    "--link",
    default="100mbit",
    show_default=True,
    callback=_link,
    metavar="RATE",
    help="Rate of every host's link, each way: 100mbit, 1gbit, none (not slowed).",
)
@click.option(
    "--hosts", type=click.IntRange(2, 64), default=2, show_default=True, help="Hosts, one rank on each."
)
@click.option(
    "--methods",
    default=METHODS,
    show_default=True,
    callback=_methods,
    metavar="'METHOD …'",
    help="Separated by spaces: none (no communication), dense (plain DDP), fp16 and powersgd:RANK (PyTorch's own "
    "hooks), agent/COMPRESSOR/MEMORY/POLICY (a part may be empty: the default).",
)
@click.option(
    "--steps",
    type=click.IntRange(2),
    default=60,
    show_default=True,
    help="Training steps of each method, in whole blocks.",
)
@click.option(
    "--block", type=click.IntRange(2), default=10, show_default=True, help="Steps between turns of methods."
)
@click.option(
    "--warmup", type=click.IntRange(0), default=3, show_default=True, help="Steps of each block not timed."
)
@click.option(
    "--width",
    type=click.IntRange(8, 8192),
    default=872,
    show_default=True,
    help="Width of the LSTM; 872: 3.5 M parameters.",
)
@click.option(
    "--heldout", type=click.IntRange(1, 12), default=4, show_default=True, help="Held-out batches of a rank."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**20), default=0, show_default=True, help="Of weights and data."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object last, on stdout; the rest on stderr."
)
def train(
    link: str,
    hosts: int,
    methods: tuple[str, ...],
    steps: int,
    block: int,
    warmup: int,
    width: int,
    heldout: int,
    seed: int,
    as_json: bool,
) -> None:
    """Train over links of a set rate, by several methods in turn, and compare.

    Makes a network inside this machine, a namespace a host with shaped links between them (needs root, ip and tc),
    and trains a language model on it. Every method has processes of its own and the same weights, data and
    steps; they take turns, so that other load hits all alike. Without root the agent emulates the link, which is said,
    and PyTorch's own hooks are left out.

    Exit code 1 when a method failed or was left out.

    \b
    Examples:
      gravac bench train --link 100mbit --hosts 2
      gravac bench train --link 1gbit --methods "none dense agent/qsgd agent/topk/conef:bits=4/static:cf=40"
    """
    block = min(block, steps)
    if warmup >= block:
        raise click.UsageError(f"--warmup {warmup} must be below the steps of a block, {block}")
    benchmark = Benchmark(
        methods=methods,
        hosts=hosts,
        link=link,
        rounds=steps // block,
        block=block,
        warmup=warmup,
        width=width,
        heldout=heldout,
        seed=seed,
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="gravac-bench-") as scratch:
            result = run(benchmark, Path(scratch), lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        click.echo("Stopped; everything it started has ended.", err=True)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    console = Console(stderr=as_json, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 132)
    _show(result, console)
    if as_json:
        click.echo(json.dumps(result))
    if any(row["error"] for row in result["rows"]):
        sys.exit(1)


def _show(result: dict[str, Any], console: Console) -> None:
    network = f"links of {result['link']}"
    if result["emulated"]:
        network = f"EMULATED links of {result['link']}, paced by the agent itself ({result['no_network']})"
    elif result["no_network"]:
        network = f"this machine's loopback ({result['no_network']})"
    console.print(
        f"{result['hosts']} hosts, {network}; {result['elements']:,} parameters; {result['cores']} cores, "
        f"load before {result['load_before']:.1f}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Method", no_wrap=True)
    for head in ("Step", "Quartiles", "Of the limit", "CPU", "Sent", "Payload", "Held-out loss"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in result["rows"]:
        if row["error"]:
            table.add_row(row["name"], "failed")
            continue
        low, high = row["seconds_quartiles"]
        table.add_row(
            row["name"],
            seconds(row["seconds"]),
            f"{seconds(low)} – {seconds(high)}",
            "–" if row["ratio"] is None else f"{row['ratio']:.0%}",
            seconds(row["cpu_seconds"]),
            "–" if row["sent_bytes"] is None else size(row["sent_bytes"]),
            size(row["payload_bytes"]),
            f"{row['heldout_loss']:.4f}",
        )
    console.print(table)
    console.print("Medians of a step; bytes of a step and rank; the limit is the speed of none.", style="dim")
