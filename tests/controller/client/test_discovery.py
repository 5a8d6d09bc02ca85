"""Controllers of this machine are found by the notes in their folders."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac_controller.client import running_controllers
from tools.harness.controller import Controller

AGENT = "an-agents-token-0123456789abcdef"


@pytest.mark.distributed
def test_running_controllers_are_found_by_their_folder(
    start: Callable[..., Controller], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start("--job", "one")
    folder, note = one.data_dir, one.data_dir / "one" / ".controller.lock"
    assert [client.url for client in running_controllers(folder)] == [one.url]
    assert [client.shows_token for client in running_controllers(folder, AGENT)] == [True]
    with monkeypatch.context() as somebody_else:
        somebody_else.setattr(os, "getuid", lambda: 12345)
        assert [client.shows_token for client in running_controllers(folder, AGENT)] == [False]
    left_behind = note.read_text()
    one.kill()
    assert list(running_controllers(folder)) == []
    two = start("--job", "two", port=one.port)  # another start at the address in that note
    assert [client.url for client in running_controllers(folder)] == [two.url]
    for nonsense in (left_behind, "", "4711", "[]", '{"url": 5}', '{"url": "::"}', "\x00"):
        note.write_text(nonsense)
        assert [client.url for client in running_controllers(folder)] == [two.url]
    assert list(running_controllers(tmp_path / "nowhere")) == []
