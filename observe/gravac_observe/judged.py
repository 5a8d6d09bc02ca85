"""Judges traces of files and folders, and shows the verdict on a terminal, as a page, or beside another one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gravac.wording import did_you_mean, printable
from gravac_controller.cli.source import CannotUse, needing_torch
from gravac_controller.cli.wording import Listing
from gravac_observe.measure import Row, measure
from gravac_observe.page import cells, figures, page
from gravac_observe.traces import ProfileError, read

if TYPE_CHECKING:
    from gravac_observe.findings.verdict import ProfileVerdict

ENDINGS = (".json", ".json.gz")


def is_profile(word: str) -> bool:
    """Return whether a word names traces: by its ending, or as a folder that has no program's name."""
    return word.endswith(ENDINGS) or (Path(word).is_dir() and which(word) is None)


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
        **question: What ``gravac_observe.findings.forecast.Question`` asks.
    """
    with needing_torch("predictions need"):
        from gravac_observe.findings.forecast import Question
        from gravac_observe.findings.verdict import judge
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
    for note in found.notes:
        console.print(printable(note))


def write_page(verdicts: Sequence[tuple[str, "ProfileVerdict"]], output: Path) -> None:
    """Write verdicts, with their names, as one HTML file."""
    try:
        output.write_text(page(verdicts), encoding="utf-8")
    except OSError as error:
        raise CannotUse(printable(f"{output}: cannot be written: {error.strerror}")) from None


def compare_verdicts(verdicts: Sequence[tuple[str, "ProfileVerdict"]], console: Console) -> None:
    """Print each verdict in a line, then their figures beside each other."""
    for name, verdict in verdicts:
        console.print(printable(f"{name}: {verdict.finding.sentence}"), style="bold")
    table = Listing(("",), tuple(printable(name) for name, _ in verdicts))
    for row in zip(*(figures(verdict) for _, verdict in verdicts), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    console.print(table)


def _table(rows: Sequence[Row]) -> Listing:
    words = ("For", "Call", *(("Link",) if any(row.level for row in rows) else ()))
    numbers = ("Exposed", "Hidden", "Late ranks", "Bytes", "Bandwidth", "Calls", "Ranks")
    table = Listing(words, numbers, leaving=("Ranks", "Calls", "Late ranks", "Bandwidth", "Bytes"))
    for row in rows:
        found = cells(row) | {"For": row.pattern}
        table.add_row(*(found[head] for head in (*words, *numbers)))
    return table
