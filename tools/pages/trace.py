"""Generates docs/trace.md and docs/trace.schema.json from the records: python -m tools.pages.trace.

The comment beside a field is its meaning. The JSON Schema is pydantic's, with those meanings as descriptions.
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

```text
{{"kind":"window","schema":{schema},"time":1795294232.19504,"body":{{…}},"digest":"c5ecb5f3651d5bea"}}
```

The trace of a job is its journal, `gravac-runs/JOB/journal.jsonl`: UTF-8, one JSON object on each line, and a newline
at the end. [trace.schema.json](trace.schema.json) is the JSON Schema of one line. `tools/pages/trace.py` makes both
from the code, and a test fails when they are out of date.

`kind` says what the body is (see [the records](#the-records)). `time` is in Unix seconds and for people; no decision
depends on it. `digest` is the first 16 hex digits of SHA-256 over the digest of the previous line (nothing for the
first line) and the bytes of this line before `,"digest":`. The five keys come in this order, without spaces. The
digests show that a line was altered, removed, added or moved. They guard against accidents. A forger could compute all
of them again, and replay guards against that.

A trace begins with the job and its first decision. Then each window has its report and its decision. Events, operators'
orders and ends may come anywhere in between. A further job line follows a restart of the trainer. Windows are numbered
from 0, and an event of kind `gap` announces missing ones. A full journal continues in a new part: the old file is
compressed as `journal.000001.jsonl.gz` (…), and the new one begins with a `part` line, the job and the decision in
force. Each part is a complete trace, and together they are one.

## Versions

This is schema {schema}. Every line has its version, and another version is refused with a message that says so. The
version changes with every new field, even an optional one. Records take no unknown fields, so an older gravac could
otherwise only report the field.

## Reading and repairs

```python
import gravac

for line in gravac.read_trace("gravac-runs/my-job/journal.jsonl"):
    print(line.number, line.kind, line.record)
```

`gravac.read_trace` iterates over the lines and holds one of them in memory. It repairs a torn last line, a compressed
stream that ends early (it reads the whole lines), CRLF and a byte order mark, and lists the repairs in its notes.
Everything else raises a `TraceError` with the file, the line and the field if there is one: lines of more than {line}
MiB, more than {trace} GiB decompressed, an unknown kind or version, a value of another type or out of range, an unknown
or missing field, NaN, a line of another job, and an altered line. `gravac replay TRACE --check` also names windows that
are missing, duplicated or decided differently, and never ends in a traceback.

Replay proves that every decision and reason follows, to the byte, from the recorded windows. It finds every change to
a decision, even with new digests, and every change to a gain or a time that a decision depends on. Only the digests
guard the rest, on which no decision depends: times by phase and rank, raw sums, bytes, loss and the environment.
`tests/gravac/traces/test_line.py` changes every field and has the list. Its traces are recordings of real runs, which
`tools/record_traces.py` makes again.

A window with its decision, its gain curve and two ranks takes about 0.9 kB when compressed, and each further listed
rank about 75 bytes: 2 kB with 16 ranks. It lists at most 1,024 ranks, and `spread` has quantiles over all of them.
[Benchmarks](../lab/benchmarks/README.md) show the cost of writing and replaying.

Integers are exact. Other numbers are IEEE doubles in the shortest form that reads back the same. Unknown is `null`,
never 0. Sums are over all ranks and over the steps of the window unless the field says otherwise.

## The records

"""
UNITS = {
    "Seconds": "seconds",
    "Quantiles": "seconds",
    "Bytes": "bytes",
    "CompressionFactor": "elements in / elements kept; 1 = dense",
    "Energy": "squared norm",
    "WindowSteps": "steps",
    "Ratio": "0 to 1",
}
"""Unit by type of the field. Some fields have their unit in their name, such as ``bits_per_second``."""


def written(model: type[BaseModel]) -> dict[str, tuple[str, str]]:
    """Return the source of the type and the comment of each field of ``model``, inherited ones first."""
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
                _, mark, meaning = lines[node.end_lineno - 1].rpartition("  # ")
                if not mark:
                    raise ValueError(
                        f"{owner.__name__}.{node.target.id} has no comment that says what it means"
                    )
                found[node.target.id] = (ast.unparse(node.annotation), meaning)
    return found


def models() -> Iterator[type[BaseModel]]:
    """Yield every record of a trace, each before the records that it holds."""
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
    """Return the JSON Schema of one line (draft 2020-12)."""
    wanted = [(model, "validation") for model in models()]
    _, document = models_json_schema(wanted, ref_template="#/$defs/{model}")  # type: ignore[arg-type]
    definitions = document["$defs"]
    for model in models():
        for name, (_, meaning) in written(model).items():
            definitions[model.__name__]["properties"][name]["description"] = meaning
    head: dict[str, Any] = {
        "schema": {"const": SCHEMA, "description": "version of this document"},
        "time": {"type": "number", "description": "Unix seconds; no decision depends on it"},
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
    """Return the JSON Schema as published."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """Return the page as Markdown."""
    by_model: dict[type, str] = {model: kind for kind, model in KINDS.items()}
    text = HEAD.format(schema=SCHEMA, line=MAX_LINE_BYTES >> 20, trace=MAX_TRACE_BYTES >> 30)
    definitions = schema()["$defs"]
    for model in models():
        kind = by_model.get(model)
        title = f"A line of kind `{kind}`: {model.__name__}" if kind else f"Inside: {model.__name__}"
        text += f"\n### {title}\n\n{_prose(model)}\n\n| Field | Type | Unit | Meaning |\n|---|---|---|---|\n"
        defined = definitions[model.__name__]
        for name, (source, meaning) in written(model).items():
            optional = "" if name in defined.get("required", ()) else " (may be left out)"
            kind_of = _type(defined["properties"][name]) + optional
            text += f"| `{name}` | {kind_of} | {_unit(name, source)} | {_cell(meaning)} |\n"
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
