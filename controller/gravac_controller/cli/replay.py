"""``gravac replay``: repeat the decisions of a trace, or compare them with those of another policy."""

import gc
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.padding import Padding

from gravac.protocol import Decision, PolicySpec
from gravac.replays.follow import ReplayedDecision
from gravac.replays.redecide import DecisionPair, Redecision, redecide
from gravac.replays.replay import Check, Replay
from gravac.replays.replay import check as check_trace
from gravac.replays.replay import replay as replay_trace
from gravac.traces import TraceError, read_trace
from gravac.wording import printable
from gravac_controller.cli.source import CannotUse, TraceFile, active_part, json_option
from gravac_controller.cli.wording import Listing, factor, printer


@click.command()
@click.argument("trace", type=TraceFile())
@click.option("--check", is_flag=True, help="Only verify the trace; exit code 1 if it differs.")
@click.option(
    "--policy",
    metavar="NAME",
    help="Also decide with this policy and show where it differs: gravac, dense, static:cf=100, auto:bound=0.01, …",
)
@json_option
def replay(trace: Path, check: bool, policy: str | None, as_json: bool) -> None:
    """Repeat the decisions of TRACE and show them.

    TRACE is the journal of a job (gzipped or not), its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs.
    Policies are pure functions, so the same windows give the same decisions. --check verifies it: no line was altered
    since it was written, and every decision follows from its window, byte for byte. It reports the first window that
    differs.

    --policy shows where another policy, or other settings, would have decided differently, with the reasons of both.
    From the first window where the ranks would have sent something else, the comparison is hypothetical: the windows
    were measured under the recorded decisions. The output marks that window.

    Exit codes: 0 no difference, 1 a difference, 2 the file cannot be read.

    \b
    Examples:
      gravac replay gravac-runs/demo-lm-20261121-093000 --check
      gravac replay journal.jsonl --policy auto:bound=0.01
      gravac replay journal.jsonl --policy static:cf=100
    """
    trace = active_part(trace)
    try:
        if policy is not None:
            if check:
                raise click.UsageError("--check verifies the recorded decisions: omit --policy")
            different = _compare(trace, policy, as_json)
            sys.exit(1 if different else 0)
        if check:
            gc.freeze()  # imported modules stay: the garbage collector need not visit them again
            found = check_trace(trace)
            _show_check(found, as_json)
            sys.exit(0 if found.ok else 1)
        again = replay_trace(read_trace(trace, verify=False))
    except TraceError as error:
        raise CannotUse(printable(str(error))) from None
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
    table = Listing(("Window", "CF", "Phase", "Rule"), prose="Reason", leaving=("Phase", "Rule"))
    for row in again.decisions:
        now = row.replayed
        reason = printable(now.reason)
        if not row.same and row.recorded is not None:
            was = row.recorded
            reason += f" (RECORDED: CF {factor(was.cf_candidate)}, {was.phase}, {was.rule}: {printable(was.reason)})"
        window = "start" if row.window < 0 else str(row.window)
        table.add_row(window, factor(now.cf_candidate), now.phase, now.rule, reason)
    console = printer()
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


def _compare(trace: Path, policy: str, as_json: bool) -> bool:
    """Print the comparison. Returns whether any decision differs.

    Raises:
        TraceError: The trace cannot be read.
        click.UsageError: The policy or a setting does not exist.
    """
    try:
        with read_trace(trace) as lines:
            found = redecide(lines, policy)
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
    console = printer()
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
            console.print("\n--- from here on, the windows were measured under the recorded decisions ---")
    count = len(found.differing)
    console.print()
    words = "decision differs" if count == 1 else "decisions differ"
    console.print(f"{count} {words} in {found.windows} windows. {found.caution}")
    for note in found.notes:
        console.print(f"note: {printable(note)}")


def _runs(pairs: Iterable[DecisionPair]) -> list[list[DecisionPair]]:
    """Runs of consecutive windows with the same decisions of both policies."""
    found: list[list[DecisionPair]] = []
    for pair in pairs:
        last = found[-1][-1] if found else None
        if last is not None and last.window + 1 == pair.window and _kind(last) == _kind(pair):
            found[-1].append(pair)
        else:
            found.append([pair])
    return found


def _kind(pair: DecisionPair) -> tuple[object, ...]:
    def of(made: Decision) -> tuple[object, ...]:
        return made.rule, made.phase, made.cf_minimum, made.cf_candidate

    return pair.measured_cf, of(pair.recorded), of(pair.other), pair.sent, pair.other_sent


def _heading(run: list[DecisionPair]) -> str:
    first, last = run[0], run[-1]
    if first.window < 0:
        return "At the start"
    where = f"Window {first.window}" if first is last else f"Windows {first.window} to {last.window}"
    cf = first.measured_cf
    measured = "" if cf is None else ", measured dense" if cf == 1.0 else f", measured at {_cf(cf)}"
    return f"{where}{measured}{'' if first is last else '; reasons of the first'}"


def _cf(cf: float) -> str:
    return "dense" if cf == 1.0 else f"CF {factor(cf)}"


def _line(who: str, decision: Decision, sent: float | None) -> str:
    cf = _cf(decision.cf_candidate)
    if sent is not None and sent != decision.cf_candidate:
        cf += f", but because of ε the ranks send {_cf(sent)}"
    return printable(f"{who:8}  {cf}, {decision.phase}, {decision.rule}: {decision.reason}")


def _rule(spec: PolicySpec, other: PolicySpec) -> str:
    """Return the name, and the settings that differ from those of ``other``."""
    alike = other.settings if other.name == spec.name else {}
    differing = [
        f"{name}={value}"
        for name, value in spec.settings.items()
        if name not in alike or alike[name] != value
    ]
    return printable(spec.name + (f": {', '.join(differing)}" if differing else ""))


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


def _pair(pair: DecisionPair) -> dict[str, Any]:
    def decision(made: Decision, sent: float | None) -> dict[str, Any]:
        return {**made.model_dump(), "sent_next": sent}

    return {
        "window": pair.window,
        "line": pair.line,
        "measured_cf": pair.measured_cf,
        "last_step": pair.last_step,
        "recorded": decision(pair.recorded, pair.sent),
        "other": decision(pair.other, pair.other_sent),
    }
