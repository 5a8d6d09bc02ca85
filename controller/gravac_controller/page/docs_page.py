"""/docs: the OpenAPI document as one HTML page with a small style sheet, without scripts or a CDN."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = "/docs.css"


def docs_page(document: dict[str, Any]) -> str:
    """Return HTML: the routes by group, with parameters, answers and examples, then the records."""
    info = document["info"]
    body = "".join(
        (
            f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
            f"<p>{escape(info['description'])}</p>",
            '<p>For programs: <a href="/openapi.json">/openapi.json</a>. The live page: <a href="/">/</a>.</p>',
            _contents(document),
            *(_group(document, tag) for tag in document["tags"]),
            '<h2 id="records">Records</h2>',
            *(_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>{escape(info["title"])}: API</title><link rel="stylesheet" href="{STYLE}"></head>'
        f"<body><main>{body}</main></body></html>"
    )


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _contents(document: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a></td>'
        f"<td>{escape(operation['summary'])}</td></tr>"
        for method, path, operation in _operations(document)
    )
    return f"<table><thead><tr><th>Route</th><th>What it does</th></tr></thead><tbody>{rows}</tbody></table>"


def _group(document: dict[str, Any], tag: dict[str, str]) -> str:
    parts = [f"<h2>{escape(tag['name'].capitalize())}</h2><p>{escape(tag['description'])}</p>"]
    parts += (
        _route(method, path, operation)
        for method, path, operation in _operations(document)
        if tag["name"] in operation["tags"]
    )
    return "".join(parts)


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    parts = [
        f'<section id="{_anchor(method, path)}"><h3><code>{method} {escape(path)}</code></h3>',
        f"<p><b>{escape(operation['summary'])}.</b> {_prose(operation.get('description', ''))}</p>",
        _needs(operation["security"]),
        _parameters(operation.get("parameters", ())),
    ]
    if body is not None:
        parts.append(f"<p>Takes {_type(body['schema'])}.</p>{_example('Example body', body.get('example'))}")
    parts.append(_answers(operation["responses"]))
    return "".join(parts) + "</section>"


def _needs(security: list[dict[str, Any]]) -> str:
    names = " or ".join(name for one in security for name in one)
    return f"<p>Needs: {escape(names)}.</p>" if names else ""


def _parameters(parameters: Any) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(param['name'])}</code></td><td>{escape(param['in'])}</td><td>{_type(param['schema'])}</td>"
        f"<td>{_prose(param.get('description', ''))}{_default(param['schema'])}</td></tr>"
        for param in parameters
    )
    head = "<tr><th>Parameter</th><th>In</th><th>Type</th><th>Meaning</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else ""


def _answers(responses: dict[str, Any]) -> str:
    rows, example = "", ""
    for status, answer in sorted(responses.items()):
        kinds = answer.get("content", {})
        types = " ".join(
            _type(one["schema"]) if one.get("schema") else escape(kind) for kind, one in kinds.items()
        )
        rows += f"<tr><td>{escape(status)}</td><td>{_prose(answer['description'])}</td><td>{types}</td></tr>"
        example += "".join(_example("Example answer", kind.get("example")) for kind in kinds.values())
    head = "<tr><th>Status</th><th>When</th><th>Body</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{example}"


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type(one)}{'' if field in required else ', optional'}</td>"
        f"<td>{_prose(one.get('description', ''))}{_default(one)}</td></tr>"
        for field, one in schema.get("properties", {}).items()
    )
    return (
        f'<section id="{escape(name)}"><h3><code>{escape(name)}</code></h3>'
        f"<p>{_prose(schema.get('description', ''))}</p>"
        f"<table><thead><tr><th>Field</th><th>Type</th><th>Meaning</th></tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        return " | ".join(
            f"<code>{escape(str(one))}</code>" for one in schema.get("enum", [schema.get("const")])
        )
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        items: dict[str, Any] = schema.get("items") or next(iter(schema.get("prefixItems", ())), {})
        return f"list of {_type(items)}"
    return escape(schema.get("type", "any"))


def _default(schema: dict[str, Any]) -> str:
    given = schema.get("default")
    return "" if given is None else f" Default: <code>{escape(json.dumps(given))}</code>."


def _example(title: str, example: Any) -> str:
    if example is None:
        return ""
    text = escape(json.dumps(example, indent=1))
    return f"<details><summary>{title}</summary><pre>{text}</pre></details>"


def _prose(text: str) -> str:
    """Return text as HTML, with `code` in backticks (single, or double as in docstrings) and paragraphs."""
    pieces = escape(text).replace("``", "`").split("`")
    marked = "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
    return marked.replace("\n\n", "<br><br>")


def _anchor(method: str, path: str) -> str:
    return f"{method}-{path}".lower().replace("/", "-").replace("{", "").replace("}", "").replace("--", "-")
