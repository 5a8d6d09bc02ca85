"""The REST reference: every route and record of a running controller's OpenAPI document, as Markdown."""

import json
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.harness.controller import Controller


def page(_: str = "") -> str:
    """Markdown for the document of a controller that needs both tokens, so that each route says which one."""
    with tempfile.TemporaryDirectory(prefix="gravac-docs-") as folder:
        tokens = {
            "GRAVAC_TOKEN": secrets.token_urlsafe(32),
            "GRAVAC_CONTROLLER_CONTROL_TOKEN": secrets.token_urlsafe(32),
        }
        controller = Controller(Path(folder) / "runs", env=tokens)
        try:
            document: dict[str, Any] = controller.ask("GET", "/openapi.json").json
        finally:
            controller.stop()
    return render(document)


def render(document: dict[str, Any]) -> str:
    """Markdown: the routes by group, then the records."""
    parts = []
    for tag in document["tags"]:
        parts.append(f"## {tag['name'].capitalize()}\n\n{tag['description']}\n")
        parts += [
            _route(method, path, operation)
            for method, path, operation in _operations(document)
            if tag["name"] in operation["tags"]
        ]
    parts.append("## Records\n")
    schemas = document["components"]["schemas"]
    parts += [_record(name, schemas[name]) for name in sorted(schemas)]
    return "\n".join(parts)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"### `{method} {path}`", f"{operation['summary']}. {_prose(operation.get('description', ''))}"]
    needed = [name for one in operation.get("security", ()) for name in one]
    if needed:
        parts.append(f"Needs: {' or '.join(needed)}.")
    rows = [
        (f"`{one['name']}`", one["in"], _type(one["schema"]), _meaning(one, one["schema"]))
        for one in operation.get("parameters", ())
    ]
    if rows:
        parts.append(_table(("Parameter", "In", "Type", "Meaning"), rows))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        parts.append(f"Body: {_type(body['schema'])}.")
    answers = sorted(operation["responses"].items())
    parts.append(
        _table(
            ("Status", "When", "Body"),
            [(status, _prose(answer["description"]), _body(answer)) for status, answer in answers],
        )
    )
    return "\n\n".join(parts) + "\n"


def _body(answer: dict[str, Any]) -> str:
    kinds = answer.get("content", {})
    return ", ".join(
        _type(one["schema"]) if one.get("schema") else f"`{kind}`" for kind, one in kinds.items()
    )


def _record(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (
            f"`{field}`",
            _type(one) + ("" if field in required else ", optional"),
            _meaning(one, one),
        )
        for field, one in schema.get("properties", {}).items()
    ]
    parts = [f"### {name}", _prose(schema.get("description", ""))]
    if rows:
        parts.append(_table(("Field", "Type", "Meaning"), rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        items: dict[str, Any] = schema.get("items") or next(iter(schema.get("prefixItems", ())), {})
        return f"list of {_type(items)}"
    return str(schema.get("type", "any"))


def _meaning(described: dict[str, Any], schema: dict[str, Any]) -> str:
    given = schema.get("default")
    default = "" if given is None else f" Default: `{json.dumps(given)}`."
    return _prose(described.get("description", "")) + default


def _prose(text: str) -> str:
    return text.replace("``", "`").replace("<", "&lt;")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
