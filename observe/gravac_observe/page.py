"""The verdict on a job by its profiler traces as one HTML file: what to do, a timeline of one step, and all figures.

Several verdicts, such as before and after a change, are compared. The page needs no script and makes no requests.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING

from gravac.wording import format_bytes, format_percent, format_seconds, printable
from gravac_controller.page.files import STATIC
from gravac_controller.report.page import policy
from gravac_observe.measure.lanes import Lane
from gravac_observe.measure.measurement import BETWEEN, INSIDE, Measurement, Row
from gravac_observe.measure.patterns import WORDS
from gravac_observe.traces.intervals import Union, less

if TYPE_CHECKING:
    from gravac_observe.findings.verdict import ProfileVerdict

WIDTH, LEFT, BAR, GAP = 1000.0, 70.0, 13.0, 9.0
"""Sizes of a timeline, in units of the drawing: a step, left of it, height of a bar, space between ranks."""
FINEST = 0.5
"""Units of the drawing: shorter pauses are not drawn."""
MOST_LANES = 64
PARTS = {
    "computing": "--phase-compute",
    "exposed communication": "--red",
    "hidden communication": "--phase-network",
}
STYLE = """
#verdict .panel { margin-bottom: var(--gap); }
#verdict table { border-collapse: collapse; width: 100%; font-size: 14px; }
#verdict :is(th, td) { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--edge); }
#verdict th { color: var(--muted); font-weight: 400; }
#verdict .num { text-align: right; }
#verdict .scroll { overflow-x: auto; }
#verdict svg { width: 100%; height: auto; margin-top: 8px; }
#verdict text { font-size: 11px; fill: var(--muted); }
"""


def page(verdicts: Sequence[tuple[str, "ProfileVerdict"]]) -> str:
    """Return the page of verdicts with their names."""
    style = (STATIC / "app.css").read_text(encoding="utf-8") + STYLE
    title = " and ".join(name for name, _ in verdicts)
    parts = [_comparison(verdicts)] if len(verdicts) > 1 else []
    parts += [_section(name, verdict, alone=len(verdicts) == 1) for name, verdict in verdicts]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([], [style])}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)} · gravac observe</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n<header class="bar"><h1>{_text(title)}</h1></header>\n<main id="verdict">\n{"".join(parts)}'
        f'<p class="muted small">gravac {version("gravac")}</p>\n</main>\n</body>\n</html>\n'
    )


def figures(verdict: "ProfileVerdict") -> Iterator[tuple[str, str]]:
    """Yield the figures that two jobs are compared by, with their names."""
    measured = verdict.measurement
    found = measured.gradients
    yield "Step", format_seconds(measured.step)
    exposed = f"{format_seconds(measured.exposed)} ({format_percent(measured.share)})"
    yield "Severity", verdict.finding.severity
    yield "Exposed communication", exposed if measured.rows or measured.world == 1 else "–"
    for level in (BETWEEN, INSIDE):
        yield f"Exposed {level}", _known(measured.levels.get(level), format_seconds)
    yield "Waiting for late ranks", _known(measured.waiting, format_seconds)
    yield "Computing", format_seconds(measured.computing)
    yield "All communication", format_seconds(measured.communicating)
    yield "Waiting for data", format_seconds(measured.loader)
    yield "Bytes of gradients", _known(_sum(measured, "gradients"), format_bytes)
    yield "Bytes of all communication", _known(_sum(measured), format_bytes)
    yield "Gradients, exposed but for late ranks", "–" if found is None else format_seconds(found.exposed)


def _sum(measured: Measurement, pattern: str = "") -> float | None:
    sizes = [row.nbytes for row in measured.rows if pattern in ("", row.pattern)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _comparison(verdicts: Sequence[tuple[str, "ProfileVerdict"]]) -> str:
    rows = zip(*(figures(verdict) for _, verdict in verdicts), strict=True)
    body = [[row[0][0], *(value for _, value in row)] for row in rows]
    table = _table(["", *(name for name, _ in verdicts)], body, 1)
    return f'<section class="panel"><h2>Compared</h2>{table}</section>\n'


def _section(name: str, verdict: "ProfileVerdict", alone: bool) -> str:
    measured = verdict.measurement
    said, *more = filter(None, (*verdict.finding.lines, verdict.others))
    about = [
        f"{measured.steps} steps",
        f"{measured.ranks} of {measured.world or measured.ranks} ranks",
        *([f"machines: {', '.join(measured.hosts)}"] if measured.hosts else []),
        *([measured.optimizer] if measured.optimizer else []),
    ]
    links = ["Link"] if any(row.level for row in measured.rows) else []
    heads = ["For", "Call", *links, "Group", "Calls", "Bytes", "Bandwidth", "Exposed", "Hidden", "Late ranks"]
    rows = ([found[head] for head in heads] for found in map(cells, measured.rows))
    notes = verdict.notes
    return (
        f'<section class="panel">{"" if alone else f"<h2>{_text(name)}</h2>"}<p class="big">{_text(said)}</p>'
        + "".join(f'<p class="reason">{_text(line)}</p>' for line in more)
        + f'<p class="muted small">{_text("; ".join(about))}</p></section>\n'
        + f'<section class="panel"><h2>One step of each rank</h2>{_timeline(measured)}</section>\n'
        + (
            f'<section class="panel"><h2>Communication of a step</h2>{_table(heads, rows, 3 + len(links))}'
            '<p class="muted small">The mean of all ranks that were given.</p></section>\n'
            if measured.rows
            else ""
        )
        + (
            '<section class="panel"><h2>What this rests on</h2>'
            f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul></section>\n"
            if notes
            else ""
        )
    )


def cells(row: Row) -> dict[str, str]:
    """Return the figures of communication of one purpose, by the heads of a table."""
    return {
        "For": WORDS[row.pattern],
        "Call": row.kind,
        "Link": row.level or "–",
        "Group": _group(row),
        "Ranks": "–" if row.size is None else str(row.size),
        "Calls": f"{row.calls:.3g}",
        "Bytes": _known(row.nbytes, format_bytes),
        "Bandwidth": _known(row.bandwidth, lambda rate: f"{format_bytes(rate)}/s"),
        "Exposed": format_seconds(row.exposed),
        "Hidden": format_seconds(row.hidden),
        "Late ranks": _known(row.waiting, format_seconds),
    }


def _group(row: Row) -> str:
    """Return the ranks of a group: 0–7, or 0, 2, 4; their number where there are many, or their names are unknown."""
    group = row.group
    if len(group) > 2 and group == tuple(range(group[0], group[-1] + 1)):
        return f"{group[0]}–{group[-1]}"
    if 0 < len(group) <= 8:
        return ", ".join(map(str, group))
    return "–" if row.size is None else f"{row.size} ranks"


def _known(value: float | None, form: Callable[[float], str]) -> str:
    return "–" if value is None else form(value)


def _table(heads: Sequence[str], rows: Iterable[list[str]], words: int) -> str:
    """Return a table, of which the columns after the first ``words`` are numbers."""

    def kind(at: int) -> str:
        return "num" if at >= words else "word"

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(f'<{tag} class="{kind(at)}">{_text(cell)}</{tag}>' for at, cell in enumerate(cells))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line(heads, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def _timeline(measured: Measurement) -> str:
    """Draw the step whose length is nearest to the mean, of each rank."""
    lanes = measured.lanes[:MOST_LANES]
    mean, first = measured.step * 1e6, lanes[0]
    step = min(range(first.steps), key=lambda at: abs(first.edges[at + 1] - first.edges[at] - mean))
    number = first.numbers[step]
    spans = [
        (lane, *_edges(lane, lane.numbers.index(number) if number in lane.numbers else lane.steps - 1))
        for lane in lanes
    ]
    begins = [lane.trace.base + start for lane, start, _ in spans]
    shared = len(measured.hosts) <= 1 and max(begins) < min(lane.trace.base + end for lane, _, end in spans)
    shifts = [begin - min(begins) if shared else 0.0 for begin in begins]
    longest = max(shift + end - start for shift, (_, start, end) in zip(shifts, spans, strict=True))
    drawn = [
        _lane(lane, start, end, shift, WIDTH / longest, at * (2 * BAR + GAP))
        for at, (shift, (lane, start, end)) in enumerate(zip(shifts, spans, strict=True))
    ]
    height = len(lanes) * (2 * BAR + GAP) + 16
    marks = "".join(
        f'<line x1="{LEFT + x:.1f}" x2="{LEFT + x:.1f}" y1="0" y2="{height - 16}" stroke="var(--grid)"/>'
        f'<text x="{LEFT + x:.1f}" y="{height - 3}" text-anchor="{anchor}">'
        f"{format_seconds(share * longest * 1e-6)}</text>"
        for share, x, anchor in ((0.0, 0.0, "start"), (0.5, WIDTH / 2, "middle"), (1.0, WIDTH, "end"))
    )
    key = "".join(
        f'<rect x="{LEFT + at * 190:.0f}" y="2" width="12" height="11" fill="var({color})"/>'
        f'<text x="{LEFT + at * 190 + 17:.0f}" y="12">{part}</text>'
        for at, (part, color) in enumerate(PARTS.items())
    )
    left_out = len(measured.lanes) - len(lanes)
    clock = "All on one clock." if shared else "Each from the begin of its own step."
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH + 4:.0f} {height + 20}" role="img" aria-label="Timeline of one step">'
        f'{key}<g transform="translate(0 20)">{marks}{"".join(drawn)}</g></svg>'
        + f'<p class="muted small">{clock}{f" {left_out} more ranks are not drawn." if left_out else ""}</p>'
    )


def _edges(lane: Lane, step: int) -> tuple[float, float]:
    return lane.edges[step], lane.edges[step + 1]


def _lane(lane: Lane, start: float, end: float, shift: float, scale: float, y: float) -> str:
    calls = Union.of((timed.call.start, timed.call.end) for timed in lane.calls)
    exposed = less(calls, lane.busy)
    rank = lane.trace.rank
    name = f"rank {'?' if rank is None else rank}"
    rows = (
        (lane.computing, y, "computing"),
        (exposed, y + BAR, "exposed communication"),
        (less(calls, exposed), y + BAR, "hidden communication"),
    )
    left = LEFT + shift * scale
    drawn = [_bars(spans, start, end, left, scale, top, PARTS[part]) for spans, top, part in rows]
    return f'<text x="0" y="{y + BAR + 4:.1f}">{_text(name)}</text>{"".join(drawn)}'


def _bars(spans: Union, start: float, end: float, begin: float, scale: float, y: float, color: str) -> str:
    """Return one path of all bars of a color."""
    bars: list[list[float]] = []
    for one, other in zip(spans.starts, spans.ends, strict=True):
        if other > start and one < end:
            left, right = (max(one, start) - start) * scale, (min(other, end) - start) * scale
            if bars and left - bars[-1][1] < FINEST:
                bars[-1][1] = right
            else:
                bars.append([left, right])
    path = "".join(
        f"M{begin + left:.1f} {y:.0f}h{max(FINEST, right - left):.1f}v{BAR:.0f}H{begin + left:.1f}z"
        for left, right in bars
    )
    return f'<path d="{path}" fill="var({color})"/>' if path else ""


def _text(text: str) -> str:
    return escape(printable(text))
