"""``gravac replay``: decide a trace again."""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gravac.traces import TraceError, read_trace
from gravac.traces.follow import ReplayedDecision
from gravac.traces.parts import ACTIVE
from gravac.traces.replay import Check, Replay
from gravac.traces.replay import check as check_trace
from gravac.traces.replay import replay as replay_trace
from gravac.wording import printable
from gravac_controller.cli.replay_other import other_rule
from gravac_controller.cli.wording import factor


class Unreadable(click.ClickException):
    """The file cannot be opened, or is no trace."""

    exit_code = 2


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Only say whether the trace is whole; exit code 1 if it is not.")
@click.option(
    "--policy",
    metavar="NAME",
    help="Decide by this rule too, and show where it differs: gravac, dense, static:cf=100, gravac:epsilon=0.4, …",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="SETTING=VALUE",
    help="With another value of one setting, such as epsilon=0.4; of the recorded rule if --policy names none. May be "
    "given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def replay(trace: Path, check: bool, policy: str | None, changes: tuple[str, ...], as_json: bool) -> None:
    """Decide every window of TRACE again and show the decisions.

    A job's journal is its trace: TRACE is gravac-runs/JOB/journal.jsonl (also gzipped), or the folder it is in. The
    rules that decide are pure, so the
    same windows must give the same decisions. --check proves that: no line was altered since it was written, and
    every decision follows from its window, byte for byte. It names the first window where that is not so.

    With --policy or --set it shows where another rule, or other settings, would have differed, side by side with the
    reasons of both. After the first window where the ranks would have sent something else, the windows no longer
    follow from that rule: they were measured under the recorded decisions, and the output says from where on.

    Exit codes: 0 the same, 1 something differs, 2 the file cannot be read.

    \b
    Examples:
      gravac replay gravac-runs/demo-lm-20261121-093000 --check
      gravac replay journal.jsonl --set epsilon=0.4 --set omega=0.02
      gravac replay journal.jsonl --policy static:cf=100
    """
    if trace.is_dir():
        trace = trace / ACTIVE
    try:
        if policy is not None or changes:
            if check:
                raise click.UsageError("--check proves the recorded decisions: leave out --policy and --set")
            different = other_rule(trace, policy, changes, as_json)
            sys.exit(1 if different else 0)
        if check:
            gc.freeze()  # what was imported stays: no search for garbage need go through it again
            found = check_trace(trace)
            _show_check(found, as_json)
            sys.exit(0 if found.ok else 1)
        again = replay_trace(read_trace(trace, verify=False))
    except TraceError as error:
        raise Unreadable(printable(str(error))) from None
    _show_rows(trace, again, as_json)
    sys.exit(1 if again.differing else 0)


def _show_check(found: Check, as_json: bool) -> None:
    if as_json:
        differences = [
            {"window": difference.window, "line": difference.line, "message": difference.message}
            for difference in found.differences
        ]
        facts = {"path": found.path, "ok": found.ok, "windows": found.windows, "decisions": found.decisions}
        click.echo(json.dumps({**facts, "differences": differences, "notes": found.notes}))
        return
    if found.ok:
        click.echo(
            f"{found.path}: the same {found.decisions} decisions from {found.windows} windows, byte for byte."
        )
    else:
        first, more = found.differences[0], len(found.differences) - 1
        click.echo(f"{found.path}: DIFFERS. First at {printable(first.message)}")
        if more:
            click.echo(
                f"{more} more {'difference follows' if more == 1 else 'differences follow'}; --json lists them."
            )
    for note in found.notes:
        click.echo(f"note: {printable(note)}")


def _show_rows(trace: Path, again: Replay, as_json: bool) -> None:
    if as_json:
        rows = [_row(row) for row in again.decisions]
        click.echo(json.dumps({"path": str(trace), "rows": rows, "notes": again.notes}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("Window", "CF", "Phase", "Rule"):
        table.add_column(name, no_wrap=True)
    table.add_column("Reason")
    for row in again.decisions:
        now = row.replayed
        reason = printable(now.reason)
        if not row.same and row.recorded is not None:
            was = row.recorded
            reason += f" (RECORDED: CF {factor(was.cf_candidate)}, {was.phase}, {was.rule}: {printable(was.reason)})"
        window = "start" if row.window < 0 else str(row.window)
        table.add_row(window, factor(now.cf_candidate), now.phase, now.rule, reason)
    console = Console(highlight=False, markup=False, soft_wrap=False)
    console.print(table)
    for note in again.notes:
        console.print(f"note: {printable(note)}")


def _row(row: ReplayedDecision) -> dict[str, Any]:
    return {
        "window": row.window,
        "line": row.line,
        "same": row.same,
        "recorded": None if row.recorded is None else row.recorded.model_dump(),
        "replayed": row.replayed.model_dump(),
    }
