"""The EC-SGD loop against its definition, and with every codec and memory of the registries."""

import math

import pytest
import torch
from torch import Tensor

from gravac.compressors import COMPRESSORS, Key
from gravac.compressors import build as build_compressor
from gravac.memories import MEMORIES, Memory
from gravac.memories import build as build_memory
from gravac_lab.estimators import EstimatorSample, Uniform
from gravac_lab.estimators.ecsgd import ECSGD, Worker
from lab.tests.support.quadratics import made, quadratics


def workers(
    compressor: str, memory: str, estimator: str, count: int = 3, samples: int = 9, size: int = 12
) -> list[Worker]:
    problems = [quadratics(seed, samples, size) for seed in range(count)]
    return [
        Worker(
            problem=problem,
            estimator=made(estimator, problem.curvature),
            memory=build_memory(memory),
            compressor=build_compressor(compressor),
        )
        for problem in problems
    ]


@pytest.mark.parametrize("compressor", ["topk", "randomk", "dense"])
@pytest.mark.parametrize("estimator", ["importance", "lsvrg", "lsvrg-importance"])
def test_the_loop_is_the_published_one(compressor: str, estimator: str) -> None:
    """Against the algorithm written out with e in parameter units (u = e/γ + g, v = γ C(u)), old x for the coins."""
    size, gamma, cf, seed = 12, 0.05, 4.0, 7
    x = torch.ones(size, dtype=torch.float64)
    group = workers(compressor, "residual", estimator, size=size)
    loop = ECSGD(x, group, step_size=gamma, cf=cf, seed=seed)
    plain = workers(compressor, "none", estimator, size=size)
    generators = [torch.Generator().manual_seed(Key(seed, 0, 0, rank).own_seed()) for rank in range(3)]
    errors = [torch.zeros(size, dtype=torch.float64) for _ in range(3)]
    total, sent_bytes = 0.0, 0
    for step in range(60):
        loop.step()
        x_old, mean = x, torch.zeros(size, dtype=torch.float64)
        for rank, worker in enumerate(plain):
            g = worker.estimator.gradient(worker.problem, x_old, worker.estimator.draw(generators[rank]))
            u = errors[rank] / gamma + g
            payload = worker.compressor.compress(u, cf, Key(seed, step, 0, rank), torch.float32)
            v = torch.zeros_like(u)
            worker.compressor.decompress(payload, v, gamma)
            mean += v / 3
            errors[rank] = errors[rank] + gamma * g - v
            total += float(errors[rank].square().sum()) / gamma**2
            sent_bytes += payload.nbytes
        x = x_old - mean
        for worker, generator in zip(plain, generators, strict=True):
            worker.estimator.after_step(worker.problem, x_old, generator)
    torch.testing.assert_close(loop.x, x, rtol=1e-4, atol=1e-5)  # memories hold float32
    assert loop.total_error == pytest.approx(total, rel=1e-3, abs=1e-6)
    assert loop.payload_bytes == sent_bytes
    assert loop.steps == 60


def residual_size(memory: Memory) -> float:
    return sum(float(residual.double().square().sum()) for residual in memory.state_dict().values())


@pytest.mark.parametrize("compressor", ["topk", "randomk"])
def test_total_error_is_what_the_memories_hold(compressor: str) -> None:
    """sum_k sum_i ||u - C(u)||² = sum_k sum_i ||e_{k+1}||² / γ²: the memory keeps e / γ."""
    group = workers(compressor, "residual", "uniform")
    loop = ECSGD(torch.zeros(12, dtype=torch.float64), group, step_size=0.05, cf=6.0)
    held = 0.0
    for _ in range(40):
        step = loop.step()
        now = sum(residual_size(worker.memory) for worker in group)
        assert step.error_sq == pytest.approx(now, rel=1e-5)
        held += now
    assert held > 0
    assert loop.total_error == pytest.approx(held, rel=1e-5)
    without = ECSGD(
        torch.zeros(12, dtype=torch.float64), workers(compressor, "none", "uniform"), step_size=0.05, cf=6.0
    )
    assert without.step().error_sq > 0  # also telemetry for a run that remembers nothing


def test_nothing_is_lost_when_the_step_size_changes() -> None:
    """x_T - mean(e_T) = x_0 - sum_k γ_k mean(g_k), for a γ that falls: the memory is rescaled with it."""

    class Recording(Uniform):
        total = torch.zeros(12, dtype=torch.float64)

        def gradient(self, problem: object, x: Tensor, sample: EstimatorSample) -> Tensor:
            g = problem.gradient(x, sample)  # type: ignore[attr-defined]
            type(self).total += loop.step_size * g / 3
            return g  # type: ignore[no-any-return]

    group = workers("topk", "residual", "uniform")
    for worker in group:
        worker.estimator = Recording(9)
    start = torch.ones(12, dtype=torch.float64)
    loop = ECSGD(start, group, step_size=0.2, cf=12.0)
    for step in range(50):
        loop.step_size = 0.2 / (1 + step / 5)
        loop.step()
    mean_error = torch.stack([worker.memory.state_dict()["x"].double() for worker in group]).mean(0)
    residual_now = loop.step_size * mean_error
    assert float(residual_now.norm()) > 0.01
    torch.testing.assert_close(loop.x - residual_now, start - Recording.total, rtol=0, atol=1e-5)


@pytest.mark.parametrize("compressor", sorted(COMPRESSORS))
def test_any_codec_of_the_registry_runs_in_the_loop(compressor: str) -> None:
    group = workers(compressor, "residual", "lsvrg", size=48)
    loop = ECSGD(torch.zeros(48, dtype=torch.float64), group, step_size=0.01, cf=2.0)
    for _ in range(5):
        step = loop.step()
        assert step.payload_bytes >= 0
        assert math.isfinite(step.error_sq)
    assert torch.isfinite(loop.x).all()
    assert loop.x.abs().max() > 0
    assert loop.payload_bytes > 0


@pytest.mark.parametrize("memory", sorted(MEMORIES))
def test_any_memory_of_the_registry_runs_in_the_loop(memory: str) -> None:
    group = workers("topk", memory, "importance", size=48)
    loop = ECSGD(torch.zeros(48, dtype=torch.float64), group, step_size=0.01, cf=4.0)
    for _ in range(20):
        assert loop.step().error_sq > 0
    assert torch.isfinite(loop.x).all()
    assert loop.x.abs().max() > 0
    if memory != "none":
        assert residual_size(group[0].memory) > 0


def test_a_run_is_its_seed() -> None:
    def end(seed: int) -> Tensor:
        group = workers("randomk", "residual", "lsvrg-importance")
        loop = ECSGD(torch.zeros(12, dtype=torch.float64), group, step_size=0.05, cf=3.0, seed=seed)
        for _ in range(30):
            loop.step()
        return loop.x

    assert torch.equal(end(1), end(1))
    assert not torch.equal(end(1), end(2))


def test_bad_settings_of_the_loop_are_named() -> None:
    x, group = torch.zeros(12), workers("topk", "residual", "uniform")
    with pytest.raises(ValueError, match="workers is empty"):
        ECSGD(x, [], step_size=0.1)
    with pytest.raises(ValueError, match=r"cf=0\.5"):
        ECSGD(x, group, step_size=0.1, cf=0.5)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="step_size="):
            ECSGD(x, group, step_size=bad)
    loop = ECSGD(x, group, step_size=0.1)
    with pytest.raises(ValueError, match=r"step_size=-1\.0"):
        loop.step_size = -1.0
    assert loop.step_size == 0.1
