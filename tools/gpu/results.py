"""Results of steps: one JSON file, which a later run continues, and the table made of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tools.gpu.figures import Figure
from tools.gpu.steps import STEPS, Step

FORMAT = 1
State = Literal["passed", "failed", "timed out"]


@dataclass(slots=True)
class Result:
    """What a step gave.

    Attributes:
        state: ``passed`` also where a figure is not what it should be.
        seconds: It took.
        date: UTC, ISO 8601.
        source: Digest of the program's files.
        figures: In order.
        tests: Number by outcome; empty for steps without tests.
        failures: Names of failed tests with the first line of why.
        tail: End of the output, where it did not pass.
    """

    state: State
    seconds: float
    date: str
    source: str
    figures: list[Figure] = field(default_factory=list)
    tests: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    tail: str = ""


@dataclass(slots=True)
class Results:
    """Results by the name of the step, facts about the machine, and whether all of it was a rehearsal on a CPU."""

    rehearsal: bool
    machine: dict[str, str] = field(default_factory=dict)
    steps: dict[str, Result] = field(default_factory=dict)


def load(file: Path, rehearsal: bool) -> Results:
    """Return what a file holds, or nothing if there is none.

    Raises:
        SystemExit: It was written by another version, or is of a rehearsal where this is none.
    """
    if not file.exists():
        return Results(rehearsal)
    data: dict[str, Any] = json.loads(file.read_text())
    if data["format"] != FORMAT or data["rehearsal"] != rehearsal:
        raise SystemExit(f"{file} is of another version, or of a rehearsal: move it away")
    steps = {
        name: Result(**{**one, "figures": [Figure(**figure) for figure in one["figures"]]})
        for name, one in data["steps"].items()
    }
    return Results(rehearsal, data["machine"], steps)


def save(results: Results, json_file: Path, table_file: Path) -> None:
    """Write the file and the table. A run that is killed leaves whole files."""
    json_file.parent.mkdir(parents=True, exist_ok=True)
    written = json.dumps({"format": FORMAT, **asdict(results)}, indent=1) + "\n"
    for file, text in ((json_file, written), (table_file, "\n".join(table(results)) + "\n")):
        scratch = file.with_suffix(".new")
        scratch.write_text(text)
        scratch.replace(file)


def table(results: Results, steps: Sequence[Step] = STEPS) -> Iterator[str]:
    """Yield the lines of the page that shows the results."""
    yield (
        "# On a GPU"
        if not results.rehearsal
        else "# Rehearsal on a CPU: these figures say nothing about a GPU"
    )
    yield ""
    yield "Written by `make gpu`. Medians; quartiles in parentheses."
    yield ""
    yield from ("| | |", "|---|---|")
    yield from (f"| {name} | {value} |" for name, value in results.machine.items())
    for step in steps:
        result = results.steps.get(step.name)
        yield from ("", f"## {step.title}", "")
        if result is None:
            yield f"Not run: `make gpu STEP={step.name}`."
            continue
        yield from _step(step, result)
    if len({result.source for result in results.steps.values()}) > 1:
        yield from ("", "The steps ran different versions of the program: see `source` in the JSON file.")


def _step(step: Step, result: Result) -> Iterator[str]:
    said = f"{result.date[:10]}, {result.seconds:.0f} s: {result.state}."
    if result.tests:
        said += (
            " Tests: " + ", ".join(f"{count} {name}" for name, count in result.tests.items() if count) + "."
        )
    yield said
    for name, why in result.failures.items():
        yield f"- **{name}**: {why}"
    if result.figures:
        targets = any(figure.met is not None for figure in result.figures)
        yield from ("", "| figure | value |" + " target |" * targets, "|---|---|" + "---|" * targets)
        for figure in result.figures:
            note = f" ({figure.note})" if figure.note else ""
            target = f" {figure.target()} |" if targets else ""
            yield f"| {figure.name}{note} | {figure.text()} |{target}"
    if result.tail:
        yield from ("", "```", *result.tail.replace("```", "'''").splitlines()[-15:], "```")
