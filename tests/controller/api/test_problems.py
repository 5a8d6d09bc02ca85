"""Unknown paths, methods and parameters: a 4xx with a problem+json that says what is allowed."""

import pytest

from tests.support.in_process import InProcess, register


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 404),
        ("GET", "/v1/jobs/", 404),
        ("GET", "/v1/jobs/a%20b", 422),
        ("GET", "/v1/jobs/..%2F..%2Fetc%2Fpasswd", 404),
        ("GET", "/v1/jobs/%2e%2e/trace", 422),
        ("GET", "/v1/jobs/job%00/trace", 422),
        ("PUT", "/v1/jobs", 405),
        ("DELETE", "/v1/jobs/job", 405),
        ("PATCH", "/metrics", 405),
        ("TRACE", "/v1/jobs", 405),
        ("OPTIONS", "/v1/jobs", 405),
        ("POST", "/", 405),
        ("POST", "/static/index.html", 405),
        ("GET", "/v1/jobs?limit=0", 422),
        ("GET", "/v1/jobs?limit=1001", 422),
        ("GET", "/v1/jobs?limit=many", 422),
        ("GET", "/v1/jobs/job/windows?after=-2", 422),
        ("GET", f"/v1/jobs/job/windows?after={10**23}", 422),
        ("GET", "/v1/jobs/job/decisions?after=x", 422),
    ],
)
def test_paths_methods_and_parameters(app: InProcess, method: str, path: str, status: int) -> None:
    register(app)
    response = app.client.request(method, path)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", "GET, HEAD, POST"),
        ("/v1/jobs/job/override", "GET, HEAD, PUT"),
        ("/v1/jobs/job/end", "POST"),
        ("/metrics", "GET, HEAD"),
    ],
)
def test_the_allow_header_lists_every_method(app: InProcess, path: str, allowed: str) -> None:
    for method in ("DELETE", "OPTIONS", "TRACE"):
        assert app.client.request(method, path).headers["allow"] == allowed
