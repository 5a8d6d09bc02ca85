"""Addresses to listen on: as they were given, and those that are not ours are named."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac_controller.server.listen import ListenError, listen, url_of
from tests.controller.cli.test_serve import serve
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed

TOKEN = "a-token-of-the-tests-0123456789"


def test_addresses_that_are_not_ours_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = serve(tmp_path, "--host", "192.0.2.1", "--port", "0", GRAVAC_TOKEN=TOKEN)
    assert found.returncode == 2
    assert "192.0.2.1 is not an address of this machine" in found.stderr

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(
        socket, "getaddrinfo", unknown
    )  # a real resolver may take long, or answer for any name
    with pytest.raises(ListenError, match="no such address"):
        listen("no.such.name.invalid", 0)


def test_ipv6_loopback(start: Callable[..., Controller]) -> None:
    try:
        listen("::1", 0).close()
    except ListenError:
        pytest.skip("this machine has no IPv6")
    controller = start("--host", "::1")
    assert controller.url == f"http://[::1]:{controller.port}"
    assert controller.ask("GET", "/healthz").status == 200


def test_the_address_is_written_as_given() -> None:
    with listen("127.0.0.1", 0) as sock:
        assert url_of(sock, "127.0.0.1") == f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert url_of(sock, "::1").startswith("http://[::1]:")
