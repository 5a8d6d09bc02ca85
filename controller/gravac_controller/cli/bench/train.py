"""``gravac bench train``: methods against each other, over links of a set rate."""

import sys
from typing import Any

import click
from rich.console import Console

from gravac_controller.bench.train import Benchmark, ChangeImpossible, run
from gravac_controller.cli.bench import options, output
from gravac_controller.cli.wording import seconds, size, table_of

METHODS = "none dense fp16 powersgd:1 agent/topk+bf16//static:cf=100"
FORMS = ("none", "alone", "dense", "fp16", "powersgd:", "agent")


def _methods(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    methods = tuple(text.split())
    for method in methods:
        if not method.startswith(FORMS):
            raise click.BadParameter(
                f"{method!r} is none of none, alone, dense, fp16, powersgd:RANK, agent/…"
            )
    if len(set(methods)) < len(methods) or not methods:
        raise click.BadParameter("give every method once, separated by spaces")
    return methods


@click.command()
@click.option(
    "--link",
    default="100mbit",
    show_default=True,
    callback=options.link,
    metavar="RATE",
    help="Rate of every host's link, each way: 100mbit, 1gbit, none (not slowed).",
)
@click.option(
    "--then",
    default=None,
    callback=lambda context, option, text: None if text is None else options.link(context, option, text),
    metavar="RATE",
    help="Rate of the links from the middle of the rounds on; a second table says what became of each method.",
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
    help="Separated by spaces: none (DDP without its communication), alone (without DDP), dense (plain DDP), fp16 and "
    "powersgd:RANK (PyTorch's own hooks), agent/COMPRESSOR/MEMORY/POLICY (a part may be empty: the default).",
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
@options.width
@click.option(
    "--heldout", type=click.IntRange(1, 12), default=4, show_default=True, help="Held-out batches of a rank."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**20), default=0, show_default=True, help="Of weights and data."
)
@click.option(
    "--decay",
    type=click.FloatRange(0.0, 1.0),
    default=0.0,
    show_default=True,
    help="Share of the steps, the last ones, over which the learning rate falls to 0.",
)
@options.as_json
def train(
    link: str,
    then: str | None,
    hosts: int,
    methods: tuple[str, ...],
    steps: int,
    block: int,
    warmup: int,
    width: int,
    heldout: int,
    seed: int,
    decay: float,
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
      gravac bench train --link 1gbit --then 100mbit --methods "dense agent"
      gravac bench train --link 1gbit --methods "none dense agent/qsgd agent/topk/conef:bits=4/static:cf=40"
    """
    block = min(block, steps)
    if warmup >= block:
        raise click.UsageError(f"--warmup {warmup} must be below the steps of a block, {block}")
    if then is not None and steps // block < 2:
        raise click.UsageError(f"--then needs two rounds at least: --steps {2 * block} or a smaller --block")
    benchmark = Benchmark(
        methods=methods,
        hosts=hosts,
        link=link,
        then=then,
        rounds=steps // block,
        block=block,
        warmup=warmup,
        width=width,
        heldout=heldout,
        seed=seed,
        decay=decay,
    )
    try:
        result = output.perform(lambda scratch, progress: run(benchmark, scratch, progress), _show, as_json)
    except ChangeImpossible as error:
        raise click.UsageError(str(error)) from None
    if any(row["error"] for row in result["rows"]):
        sys.exit(1)


def _show(result: dict[str, Any], console: Console) -> None:
    network = f"links of {result['link']}"
    if result["emulated"]:
        network = f"EMULATED links of {result['link']}, paced by the agent itself ({result['no_network']})"
    elif result["no_network"]:
        network = f"this machine's loopback ({result['no_network']})"
    output.machine(result, console)
    console.print(f"{result['hosts']} hosts, {network}; {result['elements']:,} parameters")
    _table(result["rows"], console)
    if result["then"] is not None:
        console.print(f"then, links of {result['then']['link']}")
        _table(result["then"]["rows"], console)
    console.print("Medians of a step; bytes of a step and rank; the limit is the speed of none.", style="dim")


def _table(rows: list[dict[str, Any]], console: Console) -> None:
    heads = ("Step", "Quartiles", "Of the limit", "CPU", "Sent", "Payload", "Held-out loss")
    table = table_of(("Method",), heads)
    for row in rows:
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
            "–" if row["heldout_loss"] is None else f"{row['heldout_loss']:.4f}",
        )
    console.print(table)
