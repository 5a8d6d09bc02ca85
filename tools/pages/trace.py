"""docs/trace.md and docs/trace.schema.json, made from the records: python -m tools.pages.trace.

What a field means is the comment beside it. The JSON Schema is pydantic's, with those meanings.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gravac.protocol import SCHEMA, Record
from gravac.traces.line import KINDS, MAX_LINE_BYTES
from gravac.traces.reader import MAX_TRACE_BYTES

DOCS = Path(__file__).parents[2] / "docs"
HEAD = """# The trace: a job's journal, line by line

Made from the code by `tools/pages/trace.py`; a test fails when this page is out of date. The same for machines:
[trace.schema.json](trace.schema.json), the JSON Schema of one line.

A job's trace is its journal, `gravac-runs/JOB/journal.jsonl`: UTF-8, a JSON object a line, closed by a newline.

```text
{{"kind":"window","schema":{schema},"time":1795294232.19504,"body":{{…}},"digest":"c5ecb5f3651d5bea"}}
```

`kind` says what the body is (below), `time` is in Unix seconds and for people: nothing is decided by it. `digest`
is the first 16 hex digits of SHA-256 over the digest of the line before (nothing for the first) and this line's
bytes before `,"digest":`. The five stand in this order and without spaces. So an altered line is found, and so is
one removed, added or moved. That guards against accidents, not against a forger, who could seal the lines anew:
against one there is replay.

Order of the lines: the job and the decision it begins with; then per window its report and its decision, side by
side; anywhere between, events, operators' orders and ends; a job again when its trainer started anew. Windows count
from 0 without gaps; a gap is announced by an event of kind `gap`. A full journal goes on in a new part: the file
before is gzipped as `journal.000001.jsonl.gz` (…), and the new one begins with a `part` line, the job and the
decision in force. Each part is a trace of its own, and all of them are one.

## Versions

This is schema {schema}. Every line has its own, so a journal may go on under a newer gravac. Older lines are read
for ever: `gravac/traces/upgrades.py` has a step from each version to the next, and `tests/traces` a trace of each,
which replays. A newer one is refused by name. The version grows with every field, even one that may be left out:
records take no unknown fields, so an older gravac could otherwise only complain about the field.

| Version | New in it |
|---|---|
| 1 | |
| 2 | `window.spread` (for older windows worked out from their ranks), `job.settings`, `job.environment.revision` |
| 3 | `window.steps` |

## What is read and what is not

`gravac.read_trace` gives line after line in the memory of one line. Repaired, and said in its notes: a torn last
line and a compressed stream that ends early (what is whole is read), CRLF, a byte order mark. All else is one
`TraceError` with file, line and, where there is one, field: lines of more than {line} MiB, more than {trace} GiB
unpacked, an unknown kind or version, a value of another type or out of range, an unknown or missing field, NaN,
another job's line, and an altered one. `gravac replay TRACE --check` also names windows that are missing, doubled
or decided otherwise, and never ends in a traceback.

What replay proves: every decision and reason follows, to the byte, from the windows as they stand there. So a
change to a decision is always found, even sealed anew, and one to a gain or a time that decided anything. The rest
(times by phase and rank, raw sums, bytes, loss, the environment) decides nothing, and only the digests guard it:
the list is in `tests/test_trace_mutations.py`, which changes every field. The traces it uses are of real runs,
`tools/record_traces.py` records them anew.

A window with its decision, its curve and two ranks takes about 0.9 kB, gzipped as full parts are; each further
rank that is listed about 75 bytes, so 2 kB are reached with 16. `GRAVAC_RANK_ROWS=16` keeps it there for any
number of ranks: `spread` says how the times of all of them lie. `GRAVAC_STEP_ROWS=N` lists the newest N steps of each
window besides, a column a figure (`gravac export --rows steps`); the page and REST leave them out. What writing and
replaying cost: [benchmarks](../benchmarks/README.md).

Numbers are JSON's: integers exact, others IEEE doubles in the shortest form that reads back the same. Unknown is
`null`, never 0. Sums are over all ranks and the steps of the window unless it says otherwise.

## The records

"""
UNITS = {
    "Seconds": "seconds",
    "Quantiles": "seconds",
    "Bytes": "bytes",
    "CompressionFactor": "elements in / elements kept; 1 = dense",
    "Energy": "squared norm",
    "Ratio": "0 to 1",
}
"""By the kind of value; some fields have their unit in their name, such as ``bits_per_second``."""


def written(model: type[BaseModel]) -> dict[str, tuple[str, str]]:
    """Each field of ``model``, inherited ones first: how its kind of value is written, and the comment beside it."""
    found: dict[str, tuple[str, str]] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, Record) or owner is Record:
            continue
        source = inspect.getsource(owner)
        lines = source.splitlines()
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for node in definition.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                assert node.end_lineno is not None
                _, mark, said = lines[node.end_lineno - 1].rpartition("  # ")
                if not mark:
                    raise ValueError(f"{owner.__name__}.{node.target.id} has no comment that says what it is")
                found[node.target.id] = (ast.unparse(node.annotation), said)
    return found


def models() -> Iterator[type[BaseModel]]:
    """Every record of a trace, each before those it holds."""
    seen: list[type[BaseModel]] = []

    def visit(model: type[BaseModel]) -> None:
        if model not in seen:
            seen.append(model)
            for field in model.model_fields.values():
                for inner in _records_in(field.annotation):
                    visit(inner)

    for model in KINDS.values():
        visit(model)
    yield from seen


def _records_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _records_in(part)]


def schema() -> dict[str, Any]:
    """The JSON Schema of one line (draft 2020-12)."""
    wanted = [(model, "validation") for model in models()]
    _, document = models_json_schema(wanted, ref_template="#/$defs/{model}")  # type: ignore[arg-type]
    definitions = document["$defs"]
    for model in models():
        for name, (_, said) in written(model).items():
            definitions[model.__name__]["properties"][name]["description"] = said
    head: dict[str, Any] = {
        "schema": {"const": SCHEMA, "description": "version of this document"},
        "time": {"type": "number", "description": "Unix seconds; nothing is decided by it"},
        "digest": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    }
    kinds = [
        {"properties": {"kind": {"const": kind}, "body": {"$ref": f"#/$defs/{model.__name__}"}}}
        for kind, model in KINDS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of a gravac trace, schema {SCHEMA}",
        "type": "object",
        "required": ["kind", "schema", "time", "body", "digest"],
        "properties": {"kind": {"enum": list(KINDS)}, **head, "body": {"type": "object"}},
        "additionalProperties": False,
        "oneOf": kinds,
        "$defs": definitions,
    }


def schema_text() -> str:
    """As published."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The whole page."""
    by_model: dict[type, str] = {model: kind for kind, model in KINDS.items()}
    text = HEAD.format(schema=SCHEMA, line=MAX_LINE_BYTES >> 20, trace=MAX_TRACE_BYTES >> 30)
    definitions = schema()["$defs"]
    for model in models():
        kind = by_model.get(model)
        title = f"A line of kind `{kind}`: {model.__name__}" if kind else f"Inside: {model.__name__}"
        text += f"\n### {title}\n\n{_prose(model)}\n\n| Field | Type | Unit | Meaning |\n|---|---|---|---|\n"
        defined = definitions[model.__name__]
        for name, (source, said) in written(model).items():
            optional = "" if name in defined.get("required", ()) else " (may be left out)"
            kind_of = _type(defined["properties"][name]) + optional
            text += f"| `{name}` | {kind_of} | {_unit(name, source)} | {_cell(said)} |\n"
    return text


def _unit(name: str, source: str) -> str:
    words = re.findall(r"\w+", source)
    unit = next((UNITS[word] for word in words if word in UNITS), "")
    return unit or ("samples / second" if name.endswith("samples_per_second") else "")


def _type(one: dict[str, Any]) -> str:
    if "$ref" in one:
        return str(one["$ref"]).rpartition("/")[2]
    if "allOf" in one:
        return _type(one["allOf"][0])
    if "anyOf" in one:
        return " or ".join(_type(each) for each in one["anyOf"])
    if "enum" in one or "const" in one:
        return ", ".join(f"`{each}`" for each in one.get("enum", [one.get("const")]))
    if "examples" in one:
        return f"{', '.join(f'`{each}`' for each in one['examples'])}, or another short name"
    if one.get("type") == "array":
        least, most = one.get("minItems"), one.get("maxItems")
        number = f"{most} " if least == most else f"at most {most:,} " if most else ""
        return f"list of {number}{_type(one['items'])}"
    if one.get("type") == "object":
        return "object of any values"
    return str(one.get("type", "any value"))


def _prose(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").replace("``", "`").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (DOCS / "trace.schema.json").write_text(schema_text())
    (DOCS / "trace.md").write_text(page())
