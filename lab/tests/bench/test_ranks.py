"""Ranks that hang or end are named and ended, and nobody takes their port."""

import socket
import sys
from pathlib import Path

import pytest

from gravac_lab.bench.ranks import Place, Ranks, RanksFailed

HERE = Place(address="127.0.0.1", interface="lo", core=None, wrap=list)


def test_ranks_that_hang_are_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gravac_lab.bench.ranks.END_SECONDS", 0.1)
    code = "import sys, time; print('{}', flush=True); sys.stderr.write('stuck'); sys.stderr.flush(); time.sleep(60)"
    ranks = Ranks([sys.executable, "-c", code], [HERE, HERE], 1, tmp_path / "one")
    try:
        assert ranks.ready(20) == [{}, {}]
        with pytest.raises(RanksFailed, match="rank 0 did not answer within 0 s:\nstuck"):
            ranks.ask(0.2, do="train")
    finally:
        ranks.close()
    ranks.close()  # safe to repeat


def test_ranks_that_end_are_named_with_their_last_words(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit('no disk' if os.environ['RANK'] == '1' else print('{}'))"
    ranks = Ranks([sys.executable, "-c", code], [HERE, HERE], 1, tmp_path / "one")
    try:
        with pytest.raises(RanksFailed, match="rank 1 ended:\nno disk"):
            ranks.ready(20)
    finally:
        ranks.close()


def test_nobody_takes_the_port_while_ranks_start(tmp_path: Path) -> None:
    """They are seconds from listening there; until then it is not given to others, and then it is rank 0's."""
    code = """
import os, socket, sys
print('{"port": %s}' % os.environ["MASTER_PORT"], flush=True)
sys.stdin.readline()
here = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
with socket.create_server(here):  # with SO_REUSEADDR, as torch's store
    socket.create_connection(here).close()
    print('{"met": true}', flush=True)
sys.stdin.readline()
"""
    ranks = Ranks([sys.executable, "-c", code], [HERE], None, tmp_path / "one")
    try:
        (answer,) = ranks.ready(20)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", answer["port"]))
        assert ranks.ask(20, do="listen") == [{"met": True}]
    finally:
        ranks.close()
    with socket.create_server(("127.0.0.1", answer["port"])):
        pass  # given back
