"""PowerSGD: the oracle, what it reaches, what it keeps from step to step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gravac.aggregators import Aggregator, PowerSGD
from gravac.collectives import ALONE
from gravac.compressors import Key
from tests.support.maths.aggregator_checks import BUCKETS, aggregate, bucket, gradient, run, world
from tests.support.maths.checks import LECTURE


def powersgd(state: dict[str, Tensor], **given: Any) -> PowerSGD:
    aggregator = PowerSGD(ALONE, **given)
    aggregator.load_state_dict(state)
    return aggregator


def test_powersgd_oracle() -> None:
    """Lecture vector as 2×4, Q of ones, warm start towards the best rank 1."""
    one, x = bucket(0, (2, 4)), LECTURE.abs()
    aggregator = powersgd({"p0.0": torch.ones(4, 1)}, saving=1.0)
    for gain in (0.7284245, 0.8339562, 0.8386115, 0.8387847):
        draft = aggregator.open(one).prepare(x, (1.3,), Key(0, 0, 0, 0), torch.float32)
        assert draft.kept_energy(1.3) / 21333 == pytest.approx(gain, abs=1e-6)
        flight = draft.send(1.3)
        if gain == 0.7284245:
            left = flight.left[0].flatten()  # type: ignore[attr-defined]
            assert left.abs().tolist() == pytest.approx([0.782479, 0.622677], abs=1e-6)
        mean = torch.empty(8)
        flight.mean_into(mean)
        assert float(mean.square().sum() / 21333) == pytest.approx(gain, abs=1e-6)
        aggregator.commit()


def test_powersgd_reaches_the_best_rank_of_signal_and_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 512, 4, generator=generator)
    x = (left @ right.T / 2 + 0.5 * torch.randn(512, 512, generator=generator)).flatten()
    one, aggregator = bucket(0, (512, 512)), PowerSGD(ALONE, rank=4)
    gains = []
    for step in range(3):
        mean, sent = aggregate(aggregator, one, x, 1.0, Key(0, step, 0, 0))
        assert torch.allclose(mean, sent, atol=1e-4)
        gains.append(float(mean.square().sum() / x.square().sum()))
        aggregator.commit()
    best = torch.linalg.svdvals(x.view(512, 512)).square()
    assert gains == sorted(gains)
    assert gains[2] == pytest.approx(float(best[:4].sum() / best.sum()), rel=1e-3)


def test_powersgd_is_truly_linear() -> None:
    """The mean of low-rank parts is the low-rank part of the mean: P Pᵀ mean(M)."""
    one = bucket(0, (12, 20))

    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor, Tensor]:
        x = gradient(aggregator.communicator.rank, 0, one)
        flight = aggregator.open(one).prepare(x, (4.0,), Key(0, 0, 0, 0), torch.float32).send(4.0)
        mean = torch.empty_like(x)
        flight.mean_into(mean)
        return x, mean, flight.left[0][0]  # type: ignore[attr-defined]

    ranks: list[Any] = world(3, "powersgd", each)
    whole = torch.stack([x for x, _, _ in ranks]).mean(0).view(12, 20)
    left = ranks[0][2]
    torch.testing.assert_close(ranks[0][1].view(12, 20), left @ (left.T @ whole), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-20])
def test_sixteen_equal_rank_1_matrices_come_back_exactly(scale: float) -> None:
    """Public code returns a ninth of them, twice them, or nothing."""
    one = bucket(0, *[(6, 10)] * 16)

    def low(rank: int, step: int, _: object) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        matrices = torch.randn(16, 6, 1, generator=generator) @ torch.randn(16, 1, 10, generator=generator)
        return scale * (rank + 1) * matrices.flatten()

    for text in ("powersgd:rank=1", "powersgd:rank=2"):
        for rank in run(2, text, 2, buckets=[one], source=low):
            for step in range(2):
                expected = low(0, step, None) * 1.5
                assert float((rank[step][0].mean - expected).abs().max()) <= 1e-5 * float(
                    expected.abs().max()
                )


def test_powersgd_keeps_its_factors_when_the_rank_changes() -> None:
    aggregator, one = PowerSGD(ALONE), bucket(0, (40, 60))
    x = gradient(0, 0, one)
    for step, (cf, rank) in enumerate(((4.0, 6), (24.0, 1), (8.0, 3), (4.0, 6))):
        flight = aggregator.open(one).prepare(x, (cf,), Key(0, step, 0, 0), torch.float32).send(cf)
        assert flight.payload_bytes == 4 * rank * 100
        aggregator.commit()
        assert aggregator.state_dict()["p0.0"].shape == (60, rank)


def test_the_residual_is_smallest_by_a_ranks_own_reconstruction() -> None:
    ranks = run(2, "powersgd", 1)
    for number, one in enumerate(BUCKETS):
        own = aggregated = 0.0
        for rank in range(2):
            x, step = gradient(rank, 0, one), ranks[rank][0][number]
            own += float((x - step.sent).square().sum())
            aggregated += float((x - step.mean).square().sum())
        assert own <= aggregated
