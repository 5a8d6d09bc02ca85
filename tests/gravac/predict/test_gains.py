"""Gains that a trace shows, and gains that it does not show."""

from collections import deque
from statistics import median

import pytest
import torch

from gravac.predict.gains import USUAL_DECAY, GainModel
from gravac.signals.spectrum import LADDER
from tests.support.predicted import recording, true_gain


def model(**options: object) -> GainModel:
    return GainModel.of(recording(**options), codec="topk", largest=True)


def test_what_was_sent_is_known() -> None:
    found = model()
    for cf in (10.0, 30.0, 100.0, 1000.0):
        assert found.at(cf).likely == pytest.approx(true_gain(cf))
        assert found.at(cf).why == "sent"
    assert found.at(1.0).likely == 1.0


def test_between_what_was_sent() -> None:
    """Also where only the shape of the curve shows it."""
    predicted = model().at(55.0)
    assert predicted.likely == pytest.approx(true_gain(55.0), rel=0.01)
    assert predicted.low is not None
    assert predicted.high is not None
    assert predicted.low < predicted.likely < predicted.high
    straight = model(curve=False).at(55.0)
    assert straight.likely == pytest.approx(
        true_gain(55.0), rel=0.01
    )  # a power law is straight in logarithms


def settled(cf: float, steps: int = 60, elements: int = 10_000) -> tuple[float, list[float]]:
    """Gain at ``cf`` and the curve, with the residual that Top-k leaves on gradients whose elements differ in size."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randn(elements, generator=generator).mul(1.5).exp()
    residual, gains, curves = torch.zeros(elements), [], []
    for _ in range(steps):
        compensated = residual + sizes * torch.randn(elements, generator=generator)
        order = compensated.abs().argsort(descending=True)
        energy = compensated[order].square().cumsum(0) / compensated.square().sum()
        gains.append(float(energy[int(elements / cf) - 1]))
        curves.append([float(energy[max(1, int(elements / at)) - 1]) for at in LADDER])
        residual = compensated.index_fill(0, order[: int(elements / cf)], 0.0)
    late = curves[steps // 2 :]
    return median(gains[steps // 2 :]), [sum(column) / len(late) for column in zip(*late, strict=True)]


def test_between_two_cfs_residuals_are_counted() -> None:
    """With real error feedback a curve alone predicts too much, and the power of the CF too little."""
    found = {cf: settled(cf) for cf in (1.0, 4.0, 10.0, 30.0, 100.0)}
    for cf, below, above in ((10.0, 1.0, 30.0), (10.0, 4.0, 30.0), (30.0, 1.0, 100.0), (30.0, 10.0, 100.0)):
        sent = {at: found[at][0] for at in (below, above)}
        model_of = GainModel(sent, {at: found[at][1] for at in sent}, decay=0.0, spread=0.0)
        assert model_of.at(cf).likely == pytest.approx(found[cf][0], rel=0.035), (cf, below, above)
        on_curve = model_of.on_curve(below, cf)
        assert on_curve is not None
        assert on_curve > 1.04 * found[cf][0]


def test_beyond_what_was_sent_the_curve_tells_and_the_range_is_wider() -> None:
    found = model(cfs=(1.0, 10.0, 30.0))
    far, near = found.at(900.0), found.at(20.0)
    assert far.likely == pytest.approx(
        true_gain(900.0), rel=0.01
    )  # here no residual spoils it: none was measured to
    assert far.low is not None
    assert near.low is not None
    assert far.low / far.likely < near.low / near.likely
    assert found.at(2000.0).likely is None, "no curve reaches that CF"


def test_a_dense_run_takes_off_what_residuals_usually_cost() -> None:
    found = model(cfs=(1.0,))
    assert found.decay == USUAL_DECAY
    assert found.at(100.0).likely == pytest.approx(true_gain(100.0) * 100.0**-USUAL_DECAY, rel=0.01)


def test_how_much_residuals_cost_is_learnt_from_what_was_sent() -> None:
    """Curves predict CF ** -0.35 everywhere, but at 30x half of that was measured."""
    held = recording(cfs=(10.0, 30.0))
    held.gains["topk", 30.0] = deque([true_gain(30.0) / 2] * 6)
    found = GainModel.of(held, codec="topk", largest=True)
    assert found.decay == pytest.approx(0.63, abs=0.01)  # log 2 / log 3
    beyond = found.at(90.0).likely
    assert beyond == pytest.approx(
        true_gain(90.0) / 2, rel=0.02
    )  # by 30x's own curve: another 3x, half again


def test_another_codec_is_unknown_unless_it_sends_the_largest_too() -> None:
    held = recording()
    blind = GainModel.of(held, codec="other", largest=False)
    assert blind.at(100.0).likely is None
    assert "no gain curve" in blind.at(100.0).why
    alike = GainModel.of(held, codec="other", largest=True)
    assert alike.at(100.0).likely == pytest.approx(true_gain(100.0), rel=0.01)


def test_without_a_curve_nothing_is_told_beyond() -> None:
    found = model(cfs=(1.0, 10.0, 100.0), curve=False)
    assert found.at(30.0).likely == pytest.approx(true_gain(30.0), rel=0.01)
    assert found.at(200.0).likely is None
