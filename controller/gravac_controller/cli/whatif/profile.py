"""``gravac doctor --profile``: whether a job waits for its network, from traces of PyTorch's profiler."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from gravac.profile import ProfileError, Row, measure, read
from gravac.wording import did_you_mean, format_bytes, format_seconds, printable
from gravac_controller.cli.source import CannotUse, needing_torch
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.wording import Listing, number
from gravac_controller.report.verdict_page import figures, page

if TYPE_CHECKING:
    from gravac.profile.verdict import ProfileVerdict

ENDINGS = (".json", ".json.gz")
DEFAULT_RANKS = 4
"""Ranks of a job that nothing was recorded of."""


def _page(_context: click.Context, _option: click.Parameter, output: Path | None) -> Path | None:
    """Refuse a page in a folder that is missing, before anything is measured."""
    if output is not None and not output.absolute().parent.is_dir():
        raise CannotUse(printable(f"{output}: there is no folder {output.parent}"))
    return output


OPTIONS = (
    click.option(
        "--link",
        "--bandwidth",
        "link",
        callback=quantities.single(quantities.bandwidth),
        metavar="RATE",
        help="Nominal bandwidth of each rank's link: 100mbit, 10G.  [default: as recorded]",
    ),
    click.option(
        "--ranks",
        type=click.IntRange(2, 100_000),
        help=f"Number of ranks.  [default: as recorded, else {DEFAULT_RANKS}]",
    ),
    click.option(
        "--codec-speed",
        type=click.FloatRange(1e-3, 1e5),
        metavar="GB/S",
        help="Gradients encoded a second.  [default: by recorded kernels of gravac, else assumed and printed]",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_page,
        help="Also write the verdict of a profile as one HTML page, with a timeline of a step.",
    ),
)


def elsewhere(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that ask about a job elsewhere, and for a page."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def files_of(words: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that are named, and those in folders that are."""
    for path in map(Path, words):
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if each.name.endswith(ENDINGS))
            if not found:
                raise CannotUse(printable(f"{path}: no file in this folder ends in {' or '.join(ENDINGS)}"))
            yield from found
        elif path.exists():
            yield path
        else:
            near = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            raise CannotUse(printable(f"{path}: there is no such file{did_you_mean(path.name, near)}"))


def judged(words: tuple[str, ...], **question: Any) -> "ProfileVerdict":
    """Judge the job of profiler traces.

    Args:
        words: Files or folders, of one rank or of several.
        **question: What ``gravac.profile.forecast.Question`` asks.
    """
    with needing_torch("predictions need"):
        from gravac.profile.forecast import Question
        from gravac.profile.verdict import judge
    try:
        measured = measure([read(path) for path in dict.fromkeys(files_of(words))])
    except ProfileError as error:
        raise CannotUse(printable(str(error))) from None
    return judge(measured, Question(**question))


def show(found: "ProfileVerdict", console: Console) -> None:
    """Print the verdict in three lines, then what it follows from."""
    for line, style in zip(found.finding.lines, ("bold", None, None), strict=False):
        console.print(printable(line), style=style)
    if found.others:
        console.print(printable(found.others))
    if found.measurement.rows:
        console.print(_table(found.measurement.rows))
        console.print("Of each step; the mean of all ranks that were given.", style="dim")
    for sentence in found.assumed:
        console.print(f"assumed: {printable(sentence)}")
    for sentence in found.unknown:
        console.print(f"not known: {printable(sentence)}")


def write_page(verdicts: Sequence[tuple[str, "ProfileVerdict"]], output: Path) -> None:
    """Write verdicts, with their names, as one HTML file."""
    try:
        output.write_text(page(verdicts), encoding="utf-8")
    except OSError as error:
        raise CannotUse(printable(f"{output}: cannot be written: {error.strerror}")) from None


def compare(verdicts: Sequence[tuple[str, "ProfileVerdict"]], console: Console) -> None:
    """Print each verdict in a line, then their figures beside each other."""
    for name, verdict in verdicts:
        console.print(printable(f"{name}: {verdict.finding.sentence}"), style="bold")
    table = Listing(("",), tuple(printable(name) for name, _ in verdicts))
    for row in zip(*(figures(verdict) for _, verdict in verdicts), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    console.print(table)


def _table(rows: Sequence[Row]) -> Listing:
    levels = ("Link",) if any(row.level for row in rows) else ()
    table = Listing(
        ("For", "Call", *levels),
        ("Exposed", "Hidden", "Late ranks", "Bytes", "Bandwidth", "Calls", "Ranks"),
        leaving=("Ranks", "Calls", "Late ranks", "Bandwidth", "Bytes"),
    )
    for row in rows:
        table.add_row(
            row.pattern,
            row.kind,
            *(row.level or "–" for _ in levels),
            format_seconds(row.exposed),
            format_seconds(row.hidden),
            "–" if row.waiting is None else format_seconds(row.waiting),
            "–" if row.nbytes is None else format_bytes(row.nbytes),
            "–" if row.bandwidth is None else f"{format_bytes(row.bandwidth)}/s",
            number(row.calls),
            "–" if row.size is None else str(row.size),
        )
    return table
