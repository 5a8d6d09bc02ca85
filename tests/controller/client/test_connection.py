"""Addresses of controllers, and what is said of those that cannot be reached."""

import pytest

from gravac_controller.client.connection import base_url

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("host", "http://host"),
        ("host:1", "http://host:1"),
        ("https://host/x?y", "https://host"),
        ("[::1]:9", "http://[::1]:9"),
    ],
)
def test_addresses(text: str, base: str) -> None:
    assert base_url(text) == base


@pytest.mark.parametrize("text", ["ftp://host", "http://", "host:99999", "http://[::1", "host:0"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        base_url(text)
