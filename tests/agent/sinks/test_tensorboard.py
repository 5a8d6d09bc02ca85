"""TensorBoard: its files hold the rows, and a writer of the program stays open."""

from typing import Any

import pytest

from tests.agent.sinks.test_base import expected, train

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def scalars(folder: str) -> Any:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(folder)
    found.Reload()
    return found


def test_tensorboard() -> None:
    pytest.importorskip("tensorboard")
    windows, decisions = train("tensorboard:dir=board/x")
    found = scalars("board/x")
    for name in ("gravac/loss", "gravac/wire_cf", "gravac/plan/topk-bf16"):
        values = [(each.step, each.value) for each in found.Scalars(name)]
        assert values == [(step, pytest.approx(value)) for step, value in expected(windows, name)]
    texts = [
        each.tensor_proto.string_val[0].decode() for each in found.Tensors("gravac/decision/text_summary")
    ]
    assert texts == [f"{each.rule}: {each.reason}" for each in decisions]


def test_a_summary_writer_of_the_program_stays_open() -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("board")
    windows, _ = train(writer)
    writer.add_scalar("mine", 1.0, 1)
    writer.close()
    found = scalars("board")
    assert len(found.Scalars("gravac/loss")) == len(windows)
    assert len(found.Scalars("mine")) == 1
