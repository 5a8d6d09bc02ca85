"""How the figures of a benchmark are printed: tables for people, or one JSON object."""

import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gravac.wording import printable
from gravac_controller.cli.wording import Listing, printer, size
from gravac_lab.bench.program import InvalidArguments, ProgramFailed
from gravac_lab.bench.ranks import Progress, RanksFailed

Work = Callable[[Path, Progress], dict[str, Any]]
Show = Callable[[dict[str, Any], Console], None]


def perform(work: Work, show: Show, as_json: bool) -> dict[str, Any]:
    """Do ``work``, ``show`` its figures, and print them as JSON with ``as_json``. Progress goes to stderr.

    Exits with the error message and code 1 where measuring failed, 2 where an option was refused, and with code 130
    when interrupted.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
    try:
        with tempfile.TemporaryDirectory(prefix="gravac-bench-") as scratch:
            result = work(Path(scratch), lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        click.echo("Stopped, with all processes it had started.", err=True)
        sys.exit(130)
    except InvalidArguments as error:
        raise click.UsageError(str(error)) from None
    except (ProgramFailed, RanksFailed) as error:
        raise click.ClickException(str(error)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    show(result, printer(stderr=as_json))
    if as_json:
        click.echo(json.dumps(result))
    return result


def machine(result: dict[str, Any], console: Console) -> None:
    """Print the machine, and the limits of its memory bandwidth."""
    on = result["machine"]
    versions = ", ".join(f"{name} {on[name]}" for name in ("torch", "numba") if on[name] is not None)
    console.print(
        f"{on['date']}, {printable(on['processor'] or 'unknown processor')}, {on['cores']} cores, "
        f"load before {on['load_before']:.1f}; Python {on['python']}, {versions}"
    )
    for limit in result.get("limits", ()):
        console.print(
            f"Limit of this machine, n = {limit['n']:,}: copying {size(limit['copy_bytes_per_second'])}/s "
            f"({brief(limit['copy_seconds'])}); reading, adding and writing "
            f"{size(limit['read_add_write_bytes_per_second'])}/s ({brief(limit['read_add_write_seconds'])})"
        )


def pairs(result: dict[str, Any], console: Console) -> None:
    """Print a row for each comparison."""
    machine(result, console)
    table = Listing(
        ("Name", "Against"),
        ("n", "CF", "Time", "Its time", "Ratio", "Quartiles", "Published"),
        leaving=("Published", "Quartiles", "Its time", "Against"),
    )
    for row in result["rows"]:
        low, high = row["quartiles"]
        published = row.get("published")
        table.add_row(
            row["name"],
            row["against"],
            f"{row['n']:,}",
            f"{row['cf']:.4g}" + (f", {row['second_cf']:g}" if "second_cf" in row else ""),
            brief(row["seconds"]),
            brief(row["baseline"]),
            f"{row['ratio']:.2f}",
            f"{low:.2f} – {high:.2f}",
            "" if published is None else f"{published:.2f}",
        )
    console.print(table)
    for row in result["rows"]:
        if "gain_error" in row:
            high = row["above_truth"]
            console.print(
                f"{row['name']}: gains at most {row['gain_error']:.1e} too low (at {row['cf']:.3g}x; of one parameter "
                f"{row['parameters_gain_error']:.1e}), {'never too high' if high <= 0 else f'{high:.1e} TOO HIGH'}"
            )
    console.print(
        "Medians, CPU time of one core. Ratio: its time over ours, median over pairs; above 1, ours is faster.",
        style="dim",
    )


def steps(result: dict[str, Any], console: Console) -> None:
    """Print a row for each method."""
    machine(result, console)
    console.print(f"{result['ranks']} ranks, {result['elements']:,} parameters")
    heads = ("Step", "Plain DDP", "Ratio", "Quartiles", "CPU", "Plain DDP", "Ratio", "Quartiles", "Payload")
    table = Listing(("Method",), heads, leaving=("Quartiles", "Plain DDP", "Payload", "CPU"))
    for row in result["rows"]:
        table.add_row(
            row["name"],
            brief(row["seconds"]),
            brief(row["baseline"]),
            f"{row['ratio']:.3f}",
            "{:.3f} – {:.3f}".format(*row["quartiles"]),
            brief(row["cpu_seconds"]),
            brief(row["cpu_baseline"]),
            f"{row['cpu_ratio']:.3f}",
            "{:.3f} – {:.3f}".format(*row["cpu_quartiles"]),
            size(row["payload_bytes"]),
        )
    console.print(table)
    console.print(
        "Medians of a step: wall time, then CPU time of a rank. Ratio: plain DDP over this method, median over pairs "
        "of blocks; below 1, this method is slower.",
        style="dim",
    )


def bytes_sent(result: dict[str, Any], console: Console) -> None:
    """Print a row for each size and CF."""
    machine(result, console)
    table = Listing(
        ("Codec",),
        ("n", "CF", "CF on the wire", "Payload", "Packed", "By the interface", "Link time"),
        leaving=("Packed", "By the interface", "Link time"),
    )
    for row in result["rows"]:
        counted = row["interface_ratio"]
        table.add_row(
            row["name"],
            f"{row['n']:,}",
            f"{row['cf']:g}",
            f"{row['wire_cf']:.1f}",
            size(row["payload_bytes"]),
            "–" if row["packed_bytes"] is None else size(row["packed_bytes"]),
            "–" if counted is None else f"{size(row['interface_bytes'])} ({100 * counted:.1f} %)",
            brief(row["seconds"]),
        )
    console.print(table)
    if result["no_network"] is not None:
        console.print(f"Not counted on an interface: {result['no_network']}.")
    framing = ""
    if result["gloo_bytes"] is not None:
        framing = f" and gloo's own messages ({result['gloo_bytes']:.0f} B an exchange)"
    console.print(
        f"By the interface: bytes sent by one exchange, without headers of TCP and Ethernet{framing}. Link time: "
        f"computed for {result['link']}.",
        style="dim",
    )


def collectives(result: dict[str, Any], console: Console) -> None:
    """Print a row for each collective."""
    machine(result, console)
    network = result["network"]
    where = "side by side" if result["link"] == "none" else f"on links of {result['link']}"
    console.print(
        f"{result['ranks']} ranks {where}, {result['codec']}; measured network: "
        f"{brief(network['latency_seconds'])} per message, {size(network['bytes_per_second'])}/s"
    )
    heads = ("n", "CF", "Time", "Predicted", "Dense", "Predicted", "Ratio", "Quartiles", "On the link")
    leaving = ("Quartiles", "Predicted", "On the link", "Dense")
    table = Listing(("Collective", "Chosen"), heads, leaving=leaving)
    for row in result["rows"]:
        table.add_row(
            row["name"],
            "yes" if row["chosen"] else "",
            f"{row['n']:,}",
            f"{row['cf']:g}",
            brief(row["seconds"]),
            brief(row["predicted_seconds"]),
            brief(row["baseline"]),
            brief(row["predicted_baseline"]),
            f"{row['ratio']:.2f}",
            "{:.2f} – {:.2f}".format(*row["quartiles"]),
            size(row["link_bytes"]),
        )
    console.print(table)
    console.print(
        "Medians of wall time of the slowest rank, from the payload to the mean. Ratio: the dense all-reduce over this "
        "collective, median over pairs.",
        style="dim",
    )


def brief(seconds: float) -> str:
    """Three digits: 12.3 ms, 1.23 s, 45.6 µs."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
