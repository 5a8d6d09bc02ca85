"""The OpenAPI document: complete and correct."""

from collections.abc import Callable, Iterator
from typing import Any

from gravac import proof
from gravac_controller.api.problems import STATUSES
from gravac_controller.errors import RequestError
from tests.support.in_process import InProcess, register, run
from tools.harness.builders import Trainer

PROOF = f"GET {proof.PATH}"
ROUTES = {
    "GET /v1/jobs", "POST /v1/jobs", "GET /v1/jobs/{job}", "GET /v1/jobs/{job}/windows",
    "POST /v1/jobs/{job}/windows", "GET /v1/jobs/{job}/decisions", "GET /v1/jobs/{job}/candidates",
    "GET /v1/jobs/{job}/ranks", "GET /v1/jobs/{job}/ranks/history", "GET /v1/jobs/{job}/events",
    "POST /v1/jobs/{job}/events", "GET /v1/jobs/{job}/trace", "POST /v1/jobs/{job}/end",
    "GET /v1/jobs/{job}/override", "PUT /v1/jobs/{job}/override",
    "GET /healthz", "GET /readyz", "GET /metrics", "GET /metrics/service", "GET /v1/jobs/{job}/metrics",
    "GET /v1/sd/prometheus", PROOF,
}  # fmt: skip


def document(app: InProcess) -> dict[str, Any]:
    found: dict[str, Any] = app.client.get("/openapi.json").json()
    return found


def operations(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_is_described(app: InProcess) -> None:
    found = dict(operations(document(app)))
    assert set(found) == ROUTES
    for route, operation in found.items():
        assert operation["summary"], route
        assert operation["tags"], route
        errors = {"400", "401", "403", "422", "429", "500", "503"}
        if route.startswith(("POST", "PUT")):
            assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"], route
            errors |= {"404", "408", "409", "413", "415"}
        assert errors <= set(operation["responses"]), route
        for status in errors:
            assert "application/problem+json" in operation["responses"][status]["content"], (route, status)


def needs(app: InProcess) -> dict[str, set[str]]:
    found = operations(document(app))
    return {route: {name for one in operation["security"] for name in one} for route, operation in found}


def test_the_document_says_which_token_each_route_needs_here(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    assert set().union(*needs(app).values()) == set()
    app.close()
    tokens = {
        "token": "an-agents-token-0123456789abcdef",
        "control_token": "an-operators-token-0123456789abc",
    }
    app = open_app(**tokens)
    found = needs(app)
    assert found["GET /v1/jobs"] == set()
    assert found["POST /v1/jobs/{job}/windows"] == {"token"}
    assert found["PUT /v1/jobs/{job}/override"] == {"control"}
    app.close()
    app = open_app(**tokens, host="0.0.0.0")
    app.client.headers["Authorization"] = f"Bearer {tokens['token']}"
    found = needs(app)
    assert found["GET /v1/jobs"] == {"token", "password"}
    assert found["GET /healthz"] == found["GET /v1/proof"] == set()


def test_every_reference_resolves(app: InProcess) -> None:
    found = document(app)
    schemas = found["components"]["schemas"]
    missing = {one for one in references(found) if one.removeprefix("#/components/schemas/") not in schemas}
    assert not missing
    assert {"WindowReport", "JobSpec", "Snapshot", "WindowDelta", "Problem", "JobView"} <= set(schemas)


def test_answers_have_the_fields_the_document_names(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 3)
    found = document(app)
    for route, operation in operations(found):
        if not route.startswith("GET /v1"):
            continue
        schema = operation["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            query = f"?challenge={proof.new_challenge()}" if route == PROOF else ""
            answer = app.client.get(route.removeprefix("GET ").replace("{job}", "job") + query).json()
            assert set(answer) == set(found["components"]["schemas"][name]["properties"]), route


def test_every_error_of_the_domain_has_a_status() -> None:
    assert set(STATUSES) == set(RequestError.__subclasses__())
