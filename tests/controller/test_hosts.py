"""Names and addresses of hosts are normalized."""

from gravac_controller.hosts import canonical_host, is_loopback


def test_names_and_addresses_are_normalized() -> None:
    assert canonical_host("[::0001]") == "::1"
    assert canonical_host("LocalHost.") == "localhost"
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [
        is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "a.example", "127.0.0.1.example")
    ] == [False] * 5
