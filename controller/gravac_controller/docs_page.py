"""/docs without a CDN: the routes as one plain page made from the OpenAPI document, no scripts, no styles."""

from html import escape
from typing import Any


def docs_page(document: dict[str, Any]) -> str:
    """HTML that lists each route with what it does, takes and answers."""
    rows = "".join(
        _row(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}</title></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        '<p>The whole contract: <a href="/openapi.json">/openapi.json</a>. '
        "Errors are application/problem+json.</p>"
        "<table><thead><tr><th>Route</th><th>What it does</th><th>Parameters</th><th>Body</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></body></html>"
    )


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "<br>".join(
        f"<code>{escape(one['name'])}</code> ({escape(one['in'])}) {escape(one.get('description', ''))}"
        for one in operation.get("parameters", ())
    )
    content = operation.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    cells = (
        f"<code>{escape(method.upper())} {escape(path)}</code>",
        escape(operation.get("summary", "")),
        parameters,
        f"<code>{escape(body)}</code>" if body else "",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
