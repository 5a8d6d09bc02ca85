"""The published format: the page is up to date, and the JSON Schema accepts every stored line and no other."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from gravac.protocol import SCHEMA
from gravac.traces import read_trace
from gravac.traces.line import KINDS, encode
from gravac.traces.parts import COMPRESS_LEVEL
from tools.pages.trace import DOCS, page, schema, schema_text

TRACES = sorted((Path(__file__).parent / "traces").glob("*.jsonl*"))
PUBLISHED = Draft202012Validator(json.loads((DOCS / "trace.schema.json").read_text()))


def lines(path: Path) -> list[Any]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def test_the_page_is_fresh() -> None:
    assert (DOCS / "trace.md").read_text() == page(), "python -m tools.pages.trace"


def test_the_schema_is_fresh() -> None:
    assert (DOCS / "trace.schema.json").read_text() == schema_text(), "python -m tools.pages.trace"
    meta.validate(schema())


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_every_stored_line_is_as_published(path: Path) -> None:
    seen = 0
    for line in lines(path):
        problems = [problem.message for problem in PUBLISHED.iter_errors(line)]
        assert problems == [], (line["kind"], problems)
        seen += 1
    assert seen > 10


def set_to(name: str, value: Any) -> Callable[[Any], None]:
    def change(line: Any) -> None:
        *way, last = name.split(".")
        for step in way:
            line = line[int(step) if step.isdigit() else step]
        line[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_to("schema", SCHEMA + 1),
        set_to("kind", "decision"),
        set_to("extra", 1),
        set_to("digest", "9F86D081884C7D65"),
        set_to("body.cf", 0.5),
        set_to("body.samples", -1),
        set_to("body.loss", "2.25"),
        set_to("body.extra", 1),
        set_to("body.levels.0.sums.gradient_sq", -1.0),
        set_to("body.spread.compute", [1.0, 2.0]),
        lambda line: line["body"].pop("window"),
        lambda line: line.pop("digest"),
    ],
)
def test_other_lines_are_not(change: Callable[[Any], None]) -> None:
    window = next(line for line in lines(TRACES[-1]) if line["kind"] == "window")
    assert PUBLISHED.is_valid(window)
    change(window)
    assert not PUBLISHED.is_valid(window)


def test_every_kind_of_line_is_published() -> None:
    assert [one["properties"]["kind"]["const"] for one in schema()["oneOf"]] == list(KINDS)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_window_is_at_most_2_kilobytes_gzipped(path: Path) -> None:
    """With its decision, gain curve and everything else in the trace, compressed like full parts of journals."""
    data = b"".join(
        encode(line.record, line.time, f"{number:016x}")[0] for number, line in enumerate(read_trace(path))
    )
    windows = data.count(b'{"kind":"window"')
    assert windows > 5
    assert len(gzip.compress(data, COMPRESS_LEVEL)) / windows <= 2000
