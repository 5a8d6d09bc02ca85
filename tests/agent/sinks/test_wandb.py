"""Weights & Biases, in a run of its own and in one of the program."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.agent.sinks.test_base import expected, train

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    """The history in the file of an offline run, which is a log of LevelDB behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    data, at, text, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        size, kind = struct.unpack_from("<HB", data, at + 4)
        text += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            items = wandb_internal_pb2.Record.FromString(text).history.item
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            rows += [row] if row else []
            text = b""
    return rows


@pytest.mark.parametrize("own", [False, True])
def test_wandb(own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    if own:
        run = wandb.init(project="mine", settings=wandb.Settings(console="off", x_disable_stats=True))
        run.log({"mine": 1.0})
        windows, decisions = train(run)
        assert run.step == 1  # the program's steps are its own
        run.log({"mine": 2.0})
        run.finish()
    else:
        windows, decisions = train("wandb:project=mine")
        assert wandb.run is None
    wandb.teardown()  # the next test has another folder
    rows = wandb_rows(tmp_path / "wandb")
    losses = [(row["gravac/step"], row["gravac/loss"]) for row in rows if "gravac/loss" in row]
    if own:
        assert [row["mine"] for row in rows if "mine" in row] == [1.0, 2.0]
        assert losses[-1] == expected(windows, "gravac/loss")[-1]
    else:
        assert losses == expected(windows, "gravac/loss")
        assert [row["gravac/reason"] for row in rows if "gravac/reason" in row] == [
            each.reason for each in decisions
        ]
