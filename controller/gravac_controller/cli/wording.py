"""How the command line formats numbers, times, sizes and tables. In a table no number is ever cut."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gravac.protocol import Decision, JobSpec, NetworkSpec
from gravac.signals.figures import LinkUse
from gravac.wording import format_bytes, plan_in_words
from gravac_controller.views.models import JobView

UNLIMITED = 10_000
"""Columns where there is no terminal: a program or a file takes lines of any length."""
GAP = 2
"""Spaces between columns."""
LEAST_PROSE = 24
"""Columns that a column of sentences has at least."""
size = format_bytes


def seconds(value: float | None) -> str:
    """Return a duration in milliseconds or seconds; – when unknown."""
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def dense_step(spec: JobSpec, measured: float | None, predicted: float | None) -> str:
    """Return the duration of a dense step: dense 1.10 s, or dense 480 ms predicted; dense – when unknown.

    With two levels of links it is one of theirs. Plain DDP sends whole gradients to other hosts, and may take longer.
    """
    dense = "dense" if spec.hosts is None else "dense in two levels"
    if measured is None and predicted is not None:
        return f"{dense} {seconds(predicted)} predicted"
    return f"{dense} {seconds(measured)}"


def links(used: Mapping[str, LinkUse]) -> str:
    """Return what a step sends and waits on each level of links, and which level it waits longer for."""
    between, inside = (
        f"{size(used[level].bytes)} and {seconds(used[level].seconds)}" for level in ("between", "inside")
    )
    longer = max(used, key=lambda level: used[level].seconds)
    return f"between hosts {between} a step, inside hosts {inside}: steps wait longer {longer} hosts"


def network(measured: NetworkSpec) -> str:
    """Return what the link of a rank, or of a host, carried at the start."""
    sharing = measured.ranks_per_link
    shared = f", which {sharing} ranks share" if sharing > 1 else ""
    rate = f"{measured.bytes_per_second / 1e6:.3g} MB/s"
    return f"{1e3 * measured.latency_seconds:.3g} ms a message and {rate} on a link{shared}"


def clock(unix_seconds: float) -> str:
    """Return the local time of day."""
    return datetime.fromtimestamp(unix_seconds).strftime("%H:%M:%S")


def number(value: float | None) -> str:
    """Three significant digits; – when unknown."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(likely: float | None, low: float | None, high: float | None) -> str:
    """An estimate with its range, 0.88 (0.83–0.93); the estimate alone where there is no range; – when unknown."""
    if likely is None or low is None or high is None or low == high:
        return number(likely)
    return f"{number(likely)} ({number(low)}–{number(high)})"


def factor(cf: float) -> str:
    """``dense`` or the compression factor."""
    return "dense" if cf == 1.0 else f"{cf:g}"


def plan(decision: Decision, compressor: str) -> str:
    """Return the plan of a decision: its codec, or the job's compressor, and the candidate CF."""
    return plan_in_words(decision.codec or compressor, decision.cf_candidate)


def sent_and_next(job: JobView) -> str:
    """Return the plan that a job sent last, and after an arrow the one that was ordered or decided since.

    A step sends it only when the window has ended, and a window under it tells so at its own end.
    """
    sent, order = plan_in_words(job.codec, job.cf), job.override_waiting
    if job.state == "ended" or job.latest is None:
        return sent
    if order is not None:
        follows = sent  # nobody knows what the policy then does
        if order.action in ("pin", "dense"):
            follows = plan_in_words(order.codec or job.codec, order.cf or 1.0)
    elif job.decision.epoch == job.latest.report.epoch:  # what it sends by its gate is its own
        follows = sent
    else:
        follows = plan(job.decision, job.compressor)
    return sent if follows == sent else f"{sent} → {follows}"


def printer(stderr: bool = False) -> Console:
    """Return a console that prints text as it is, and does not wrap it where there is no terminal."""
    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    return console


class Listing:
    """Rows of text and numbers. Where they are too wide, columns leave, then texts wrap.

    Args:
        texts: Heads of the columns of text, on the left.
        numbers: Heads of the columns of numbers, aligned right.
        prose: Head of a last column of sentences, which wrap; empty: none.
        leaving: Heads of the columns that may leave, the first one first. None: all numbers but the first, from the
            right.
        head: Style of the heads.
    """

    def __init__(
        self,
        texts: Sequence[str],
        numbers: Sequence[str] = (),
        *,
        prose: str = "",
        leaving: Sequence[str] | None = None,
        head: str = "bold",
    ) -> None:
        self._heads = [*texts, *numbers, *([prose] if prose else [])]
        self._texts, self._numbers, self._prose = len(texts), len(numbers), bool(prose)
        self._leaving = tuple(reversed(numbers[1:])) if leaving is None else tuple(leaving)
        self._head = head
        self._rows: list[list[str | Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; cells that are not given are empty."""
        self._rows.append([*cells, *[""] * (len(self._heads) - len(cells))])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, left = self._fitting(options.max_width)
        table = Table(box=None, pad_edge=False, header_style=self._head)
        wraps = self._width(shown) > options.max_width
        for at in shown:
            number = self._texts <= at < self._texts + self._numbers
            table.add_column(
                self._heads[at],
                justify="right" if number else "left",
                no_wrap=number or not (wraps or self._is_prose(at)),
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*(row[at] for at in shown))
        for line in console.render_lines(table, options, pad=False):
            yield from _stripped(line)
            yield Segment.line()
        if left:
            yield Text(f"A wider terminal also shows {', '.join(left)}.", style="dim")

    def _fitting(self, width: int) -> tuple[list[int], list[str]]:
        """Return the columns that fit, and the heads of those that do not."""
        shown, left = list(range(len(self._heads))), list[str]()
        for head in self._leaving:
            if self._width(shown) <= width:
                break
            if head not in left:
                shown = [at for at in shown if self._heads[at] != head]
                left.append(head)
        return shown, left

    def _width(self, shown: Iterable[int]) -> int:
        """Return the columns that the table takes without wrapping anything but sentences."""
        return sum(self._column_width(at) + GAP for at in shown) - GAP

    def _column_width(self, at: int) -> int:
        cells = (self._heads[at], *(row[at] for row in self._rows))
        widest = max(cell_len(cell.plain if isinstance(cell, Text) else cell) for cell in cells)
        return min(widest, LEAST_PROSE) if self._is_prose(at) else widest

    def _is_prose(self, at: int) -> bool:
        return self._prose and at == len(self._heads) - 1


def _stripped(line: list[Segment]) -> Iterator[Segment]:
    """Return a line without the spaces at its end."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        *before, last = line
        yield from before
        yield Segment(last.text.rstrip(), last.style)
