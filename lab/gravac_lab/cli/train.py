"""``gravac bench train``: compare training methods over links of a given bandwidth."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gravac_controller.cli.wording import Listing, seconds, size
from gravac_lab.bench.train import WIDTH, Benchmark, ChangeImpossible, run
from gravac_lab.cli import options, output

METHODS = "none dense fp16 powersgd:1 agent/topk+bf16//static:cf=100"
FORMS = ("none", "alone", "dense", "fp16", "powersgd:", "diloco:", "agent", "fsdp")


def _methods(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    methods = tuple(text.split())
    for method in methods:
        if not method.startswith(FORMS):
            raise click.BadParameter(
                f"{method!r} is not one of none, alone, dense, fp16, powersgd:RANK, diloco:STEPS, agent/…, fsdp…"
            )
    if len(set(methods)) < len(methods) or not methods:
        raise click.BadParameter("give each method once, separated by spaces")
    return methods


def _links(context: click.Context, option: click.Parameter, text: str) -> tuple[str, str | None]:
    first, slash, second = text.partition("/")
    return options.link(context, option, first), options.link(context, option, second) if slash else None


def _hosts(context: click.Context, option: click.Parameter, text: str) -> tuple[int, int]:
    hosts, cross, each = text.partition("x")
    if not (hosts.isdecimal() and 2 <= int(hosts) <= 64) or (
        cross and not (each.isdecimal() and 1 <= int(each) <= 64)
    ):
        raise click.BadParameter(f"{text!r} is not 2 to 64 hosts, such as 2, or 2x4 with four ranks each")
    return int(hosts), int(each or 1)


@click.command(short_help="Train with several methods over slow links and compare them.")
@click.option(
    "--link",
    "links",
    default="100mbit",
    show_default=True,
    callback=_links,
    metavar="RATE[/RATE]",
    help="Bandwidth of every host's link, in each direction: 100mbit, 1gbit, none (unlimited); a second one is that of "
    "the second half of the rounds, with a table of its own.",
)
@click.option(
    "--hosts",
    default="2",
    show_default=True,
    callback=_hosts,
    metavar="HOSTS[xRANKS]",
    help="Number of hosts, with one rank each; 2x4 is two hosts with four ranks, which share its link.",
)
@click.option(
    "--methods",
    default=METHODS,
    show_default=True,
    callback=_methods,
    metavar="'METHOD …'",
    help="Methods, separated by spaces: none (DDP without communication), alone (without DDP), dense (plain DDP), fp16 "
    "and powersgd:RANK (PyTorch's hooks), diloco:STEPS (ranks average every so many steps), "
    "agent/COMPRESSOR/MEMORY/POLICY (an empty part: its default), agent:flat/… (with levels='flat'), fsdp (FSDP2) and "
    "fsdp/COMPRESSOR/MEMORY/POLICY. FSDP2 takes options after a colon: bf16 (gather parameters in bfloat16), keep "
    "(gather them once a step), unreduced (leave out its reduce-scatter).",
)
@click.option(
    "--steps",
    type=click.IntRange(2),
    default=60,
    show_default=True,
    help="Training steps per method, in whole blocks.",
)
@click.option(
    "--block", type=click.IntRange(2), default=10, show_default=True, help="Steps per turn of a method."
)
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Untimed steps at the start of a block.",
)
@click.option(
    "--task",
    default=None,
    metavar="TASK",
    help="Train this task instead of the LSTM, as `gravac simulate` does: gpt:size=3m, lm:optimizer=adamw, resnet.",
)
@click.option(
    "--heldout",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Held-out batches per rank, of 16 sequences or images; at most what the task has.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for the agents' journals, one folder per method by its place in --methods, which `gravac replay`, "
    "`explain` and `report` read. Without it they are deleted.",
)
@options.as_json
def train(
    links: tuple[str, str | None],
    hosts: tuple[int, int],
    methods: tuple[str, ...],
    steps: int,
    block: int,
    warmup: int,
    task: str | None,
    heldout: int,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Train over links of a given bandwidth with several methods in turn, and compare them.

    Creates a network inside this machine, with a namespace for each host and shaped links between them (needs root, ip
    and tc), and trains an LSTM, or another task, on it. Each method has its own processes and the same weights, data
    and steps. Methods take turns, so that other load affects all of them. Without root, the agent emulates the link
    and PyTorch's hooks are skipped; the output says so.

    With --json, the held-out loss is measured after every round. Exit code 1 when a method failed or was skipped.

    \b
    Examples:
      gravac bench train --link 100mbit --hosts 2
      gravac bench train --link 1gbit/100mbit --methods "dense agent"
      gravac bench train --link 100mbit --hosts 2x4 --task gpt:size=3m,optimizer=adamw-aged
      gravac bench train --link 100mbit --task gpt:size=3m --steps 200
      gravac bench train --link 1gbit --methods "none dense agent/qsgd agent/topk/conef:bits=4/static:cf=40"
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep} is not empty; give a new folder")
    block = min(block, steps)
    if warmup >= block:
        raise click.UsageError(f"--warmup {warmup} must be below the steps of a block, {block}")
    link, then = links
    if then is not None and steps // block < 2:
        raise click.UsageError(f"two links need two rounds: --steps {2 * block} or a smaller --block")
    benchmark = Benchmark(
        methods=methods,
        hosts=hosts[0],
        each=hosts[1],
        link=link,
        then=then,
        rounds=steps // block,
        block=block,
        warmup=warmup,
        width=WIDTH,
        task=task,
        heldout=heldout,
        curve=as_json,
    )
    try:
        result = output.perform(
            lambda scratch, progress: run(benchmark, keep or scratch, progress), _show, as_json
        )
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
    each = f" of {result['ranks_per_host']} ranks" if result["ranks_per_host"] > 1 else ""
    console.print(f"{result['hosts']} hosts{each}, {network}; {result['elements']:,} parameters")
    _table(result["rows"], console)
    if result["then"] is not None:
        console.print(f"then, links of {result['then']['link']}")
        _table(result["then"]["rows"], console)
    console.print(
        "Medians per step; sent by a host, payload of a rank; the limit is the speed of none.", style="dim"
    )


def _table(rows: list[dict[str, Any]], console: Console) -> None:
    heads = ("Step", "Quartiles", "Of the limit", "CPU", "Sent", "Payload", "Held-out loss")
    table = Listing(("Method",), heads, leaving=("Quartiles", "CPU", "Of the limit", "Sent"))
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
