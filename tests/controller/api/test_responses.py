"""Headers of every answer, and how long a browser keeps it."""

import pytest

from gravac_controller.api.responses import HEADERS
from tests.support.in_process import InProcess
from tools.harness.builders import spec

SPEC = spec().model_dump_json().encode()
JSON = {"Content-Type": "application/json"}


def test_every_answer_has_the_headers_and_none_allows_other_origins(app: InProcess) -> None:
    app.client.post("/v1/jobs", content=SPEC, headers=JSON)
    asked = [
        ("GET", path, {"Origin": "http://evil.example"})
        for path in ("/", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/jobs", "/nowhere",
                     "/v1/jobs/job", "/v1/jobs/job/trace", "/v1/jobs/nobody", "/static/nothing.js")
    ]  # fmt: skip
    asked += [("POST", "/v1/jobs", {}), ("OPTIONS", "/v1/jobs", {"Origin": "http://evil.example"})]
    asked += [("GET", "/v1/jobs", {"Host": "evil.example"})]
    for method, path, headers in asked:
        answer = app.client.request(method, path, headers=headers)
        for name, value in HEADERS.items():
            assert answer.headers.get_list(name) == [value], (method, path)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("name", "keeping"), [("page.js", "no-cache"), ("icon.svg", "max-age=86400")])
def test_page_files_are_cached_by_the_browser_alone(app: InProcess, name: str, keeping: str) -> None:
    first = app.client.get(f"/static/{name}")
    assert first.headers.get_list("cache-control") == [f"private, {keeping}"]
    again = app.client.get(f"/static/{name}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for answer in (first, again):
        for other, value in HEADERS.items():
            assert other == "cache-control" or answer.headers.get_list(other) == [value]
    assert app.client.get(f"/static/{name}", headers={"If-None-Match": '"older"'}).content == first.content
    assert app.client.get("/").headers.get_list("cache-control") == ["no-store"]
