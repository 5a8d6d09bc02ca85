"""``gravac replay``: decide a trace again."""

import gc
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from gravac.policies import parse_settings
from gravac.protocol import Decision, PolicySpec
from gravac.traces.parts import ACTIVE
from gravac.traces.redecide import Pair, Redecision, redecide
from gravac.traces.replay import Check, Replay, Row
from gravac.traces.replay import check as check_trace
from gravac.traces.replay import replay as replay_trace
from gravac.traces.trace import TraceError, read
from gravac_controller.cli.wording import factor, printable


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
            different = _compare(trace, policy, changes, as_json)
            sys.exit(1 if different else 0)
        if check:
            gc.freeze()  # what was imported stays: no search for garbage need go through it again
            found = check_trace(trace)
            _show_check(found, as_json)
            sys.exit(0 if found.ok else 1)
        again = replay_trace(read(trace, verify=False))
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
        rows = [_row(row) for row in again.rows]
        click.echo(json.dumps({"path": str(trace), "rows": rows, "notes": again.notes}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("Window", "CF", "Phase", "Rule"):
        table.add_column(name, no_wrap=True)
    table.add_column("Reason")
    for row in again.rows:
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


def _row(row: Row) -> dict[str, Any]:
    return {
        "window": row.window,
        "line": row.line,
        "same": row.same,
        "recorded": None if row.recorded is None else row.recorded.model_dump(),
        "replayed": row.replayed.model_dump(),
    }


def _compare(trace: Path, policy: str | None, changes: tuple[str, ...], as_json: bool) -> bool:
    """Show it; whether it differs anywhere. Raises TraceError, and click's own error for a rule that there is not."""
    settings: dict[str, Any] = {}
    try:
        for change in changes:
            settings |= parse_settings(change, "--set: ")
        with read(trace) as lines:
            found = redecide(lines, policy, settings)
    except ValueError as error:
        if hasattr(error, "line"):  # of the trace
            raise
        raise click.UsageError(printable(str(error))) from None
    if as_json:
        click.echo(json.dumps(_comparison(trace, found)))
    else:
        _show_comparison(found)
    return bool(found.differing)


def _show_comparison(found: Redecision) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=False)
    console.print(f"recorded  {_rule(found.recorded_policy, found.policy)}")
    console.print(f"other     {_rule(found.policy, found.recorded_policy)}")
    for run in _runs(found.differing):
        console.print()
        console.print(_heading(run), style="bold")
        first = run[0]
        for who, decision, sent in (
            ("recorded", first.recorded, first.sent),
            ("other", first.other, first.other_sent),
        ):
            console.print(Padding(_line(who, decision, sent), (0, 0, 0, 2)))
        if found.first in run:
            console.print("\n--- from here on the windows follow from the recorded decisions alone ---")
    count = len(found.differing)
    console.print()
    words = "decision differs" if count == 1 else "decisions differ"
    console.print(f"{count} {words} in {found.windows} windows. {found.caution}")
    for note in found.notes:
        console.print(f"note: {printable(note)}")


def _runs(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Windows one after the other that both rules decide as they did the one before."""
    found: list[list[Pair]] = []
    for pair in pairs:
        last = found[-1][-1] if found else None
        if last is not None and last.window + 1 == pair.window and _kind(last) == _kind(pair):
            found[-1].append(pair)
        else:
            found.append([pair])
    return found


def _kind(pair: Pair) -> tuple[object, ...]:
    def of(one: Decision) -> tuple[object, ...]:
        return one.rule, one.phase, one.cf_minimum, one.cf_candidate

    return pair.measured_cf, of(pair.recorded), of(pair.other), pair.sent, pair.other_sent


def _heading(run: list[Pair]) -> str:
    first, last = run[0], run[-1]
    if first.window < 0:
        return "At the start"
    where = f"Window {first.window}" if first is last else f"Windows {first.window} to {last.window}"
    cf = first.measured_cf
    measured = "" if cf is None else ", measured dense" if cf == 1.0 else f", measured at {_cf(cf)}"
    return f"{where}{measured}{'' if first is last else '; the reasons are of the first'}"


def _cf(cf: float) -> str:
    return "dense" if cf == 1.0 else f"CF {factor(cf)}"


def _line(who: str, decision: Decision, sent: float | None) -> str:
    cf = _cf(decision.cf_candidate)
    if sent is not None and sent != decision.cf_candidate:
        cf += f", but ε lets only {_cf(sent)} pass"
    return printable(f"{who:8}  {cf}, {decision.phase}, {decision.rule}: {decision.reason}")


def _rule(spec: PolicySpec, other: PolicySpec) -> str:
    """Name, and the settings that the other one does not have alike."""
    alike = other.settings if other.name == spec.name else {}
    own = [
        f"{name}={value}"
        for name, value in spec.settings.items()
        if name not in alike or alike[name] != value
    ]
    return printable(spec.name + (f": {', '.join(own)}" if own else ""))


def _comparison(trace: Path, found: Redecision) -> dict[str, Any]:
    return {
        "path": str(trace),
        "recorded_policy": found.recorded_policy.model_dump(),
        "policy": found.policy.model_dump(),
        "windows": found.windows,
        "first_difference": None if found.first is None else found.first.window,
        "caution": found.caution,
        "differing": [_pair(pair) for pair in found.differing],
        "notes": found.notes,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    def decision(one: Decision, sent: float | None) -> dict[str, Any]:
        return {**one.model_dump(), "sent_next": sent}

    return {
        "window": pair.window,
        "line": pair.line,
        "measured_cf": pair.measured_cf,
        "last_step": pair.last_step,
        "recorded": decision(pair.recorded, pair.sent),
        "other": decision(pair.other, pair.other_sent),
    }
