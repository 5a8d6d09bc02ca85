"""Estimators: unbiased by enumeration, the sampler, the trainer's side, and the EC-SGD loop against its definition."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from gravac.compressors import COMPRESSORS, Key
from gravac.compressors import build as build_compressor
from gravac.estimators import ESTIMATORS, LSVRG, Estimator, Importance, Sample, Uniform, build
from gravac.estimators.ecsgd import ECSGD, Worker
from gravac.estimators.module_sum import ModuleSum, flat_parameters, linear_term
from gravac.estimators.sampler import EstimatorSampler, WeightedDataset
from gravac.memories import MEMORIES, Memory
from gravac.memories import build as build_memory

KINDS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in sorted(ESTIMATORS)},
    "lsvrg-importance": {"name": "lsvrg", "base": "importance"},
}
NAMES = list(KINDS)


def made(kind: str, scores: Tensor) -> Estimator:
    return build(scores=scores, **KINDS[kind])


class Quadratics(NamedTuple):
    """f_j(x) = (L_j / 2) ||x - c_j||², ``curvature`` ``(m,)``, ``centres`` ``(m, d)``."""

    curvature: Tensor
    centres: Tensor

    @property
    def samples(self) -> int:
        return len(self.centres)

    def gradient(self, x: Tensor, sample: Sample) -> Tensor:
        pulls = self.curvature[sample.indices, None] * (x - self.centres[sample.indices])
        return sample.weights @ pulls / len(sample.weights)

    def full_gradient(self, x: Tensor) -> Tensor:
        return (self.curvature[:, None] * (x - self.centres)).mean(0)


def quadratics(seed: int, samples: int = 9, size: int = 4) -> Quadratics:
    generator = torch.Generator().manual_seed(seed)
    curvature = torch.rand(samples, generator=generator, dtype=torch.float64) * 5 + 0.01
    return Quadratics(curvature, torch.randn(samples, size, generator=generator, dtype=torch.float64))


def every_draw(estimator: Estimator) -> list[Sample]:
    return [Sample(torch.tensor([j]), estimator.weight[j : j + 1]) for j in range(estimator.samples)]


def expectation(estimator: Estimator, problem: Quadratics, x: Tensor) -> tuple[Tensor, float]:
    """Exact mean and variance of the estimate at ``x``."""
    outcomes = torch.stack([estimator.gradient(problem, x, sample) for sample in every_draw(estimator)])
    mean = estimator.probability @ outcomes
    return mean, float(estimator.probability @ (outcomes - mean).square().sum(1))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), samples=st.integers(1, 12))
def test_unbiased_to_rounding(name: str, seed: int, samples: int) -> None:
    problem = quadratics(seed, samples)
    estimator = made(name, problem.curvature)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(4, generator=generator, dtype=torch.float64)
    estimator.gradient(problem, start, estimator.draw(generator))  # L-SVRG remembers this point ...
    x = torch.randn(4, generator=generator, dtype=torch.float64)  # ... and is asked about another
    assert float(estimator.probability.sum()) == pytest.approx(1.0, abs=1e-12)
    mean, _ = expectation(estimator, problem, x)
    assert (mean - problem.full_gradient(x)).abs().max() < 1e-12


def test_a_batch_is_the_mean_of_its_draws() -> None:
    problem = quadratics(0)
    estimator = Importance(problem.curvature)
    sample = estimator.draw(torch.Generator().manual_seed(1), 5)
    assert sample.indices.shape == sample.weights.shape == (5,)
    x = torch.ones(4, dtype=torch.float64)
    singles = [
        problem.gradient(x, Sample(i[None], w[None]))
        for i, w in zip(sample.indices, sample.weights, strict=True)
    ]
    torch.testing.assert_close(estimator.gradient(problem, x, sample), torch.stack(singles).mean(0))


@pytest.mark.parametrize("base", ["uniform", "importance"])
def test_lsvrg_is_exact_at_its_point_and_better_near_it(base: str) -> None:
    problem = quadratics(3)
    estimator, plain = build("lsvrg", problem.curvature, base=base), build(base, problem.curvature)
    x = torch.full((4,), 2.0, dtype=torch.float64)
    for sample in every_draw(estimator):
        torch.testing.assert_close(
            estimator.gradient(problem, x, sample), problem.full_gradient(x), rtol=0, atol=1e-12
        )
    near = x + 0.01
    assert expectation(estimator, problem, near)[1] < 1e-3 * expectation(plain, problem, near)[1]


def test_equal_scores_make_importance_uniform() -> None:
    importance, uniform = Importance(torch.full((7,), 3.5)), Uniform(7)
    torch.testing.assert_close(importance.probability, uniform.probability, rtol=0, atol=1e-15)
    torch.testing.assert_close(importance.weight, torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-14)
    draws = [e.draw(torch.Generator().manual_seed(5), 1000).indices for e in (importance, uniform)]
    assert torch.equal(draws[0], draws[1])


def test_expected_smoothness_falls_from_the_largest_to_the_mean() -> None:
    curvature = torch.tensor([1.0, 1.0, 1.0, 97.0])
    assert Uniform(4).smoothness(curvature) == pytest.approx(97.0)
    assert Importance(curvature).smoothness(curvature) == pytest.approx(25.0)
    assert made("lsvrg-importance", curvature).smoothness(curvature) == pytest.approx(25.0)


@pytest.mark.parametrize("name", NAMES)
def test_draws_follow_the_probabilities(name: str) -> None:
    estimator = made(name, torch.tensor([1.0, 2.0, 3.0, 4.0, 0.1]))
    count = 40_000
    drawn = Counter(estimator.draw(torch.Generator().manual_seed(0), count).indices.tolist())
    assert set(drawn) == set(range(5))
    chi_square = sum(
        (drawn[j] - count * float(p)) ** 2 / (count * float(p)) for j, p in enumerate(estimator.probability)
    )
    assert chi_square < 23.5  # four degrees of freedom: 1 in 10,000


def test_the_last_sample_can_be_drawn_and_nothing_beyond_it() -> None:
    estimator = Importance(torch.full((3,), 1e-3))
    estimator._cumulative[-1] = 0.5  # as if rounding had left it far below 1
    assert int(estimator.draw(torch.Generator().manual_seed(0), 1000).indices.max()) == 2


def test_a_floor_bounds_the_weights_and_keeps_the_mean() -> None:
    problem = quadratics(4)
    guesses = torch.rand(9, generator=torch.Generator().manual_seed(1))
    guesses[0] = 0.0
    estimator = Importance(guesses, floor=0.2)
    assert float(estimator.weight.max()) <= 5.0 + 1e-12
    x = torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(expectation(estimator, problem, x)[0], problem.full_gradient(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0), "samples=0"),
        (lambda: Importance(torch.tensor([])), "one number per sample"),
        (lambda: Importance(torch.ones(2, 2)), "one number per sample"),
        (lambda: Importance(torch.tensor([1.0, 0.0])), r"scores\[1\]=0.0: .*floor > 0"),
        (lambda: Importance(torch.tensor([1.0, -1.0]), floor=0.1), r"scores\[1\]=-1.0"),
        (lambda: Importance(torch.tensor([math.nan, 1.0])), r"scores\[0\]=nan"),
        (lambda: Importance(torch.tensor([math.inf, 1.0]), floor=0.1), r"scores\[0\]=inf"),
        (lambda: Importance(torch.zeros(3), floor=0.1), "all 0"),
        (lambda: Importance(torch.tensor([5e-324, 1e300], dtype=torch.float64)), "set floor > 0"),
        (lambda: Importance(torch.ones(3), floor=1.5), "floor=1.5"),
        (lambda: LSVRG(Uniform(3), refresh=0.0), "refresh=0.0"),
        (lambda: LSVRG(LSVRG(Uniform(3))), "already reduces variance"),
        (lambda: build("svrg", torch.ones(3)), "estimator='svrg' is unknown; choose one of importance, lsvrg"),
        (lambda: build("lsvrg", torch.ones(3), base="svrg"), "base='svrg' of lsvrg is unknown; choose one of imp"),
        (lambda: build("lsvrg", torch.ones(3), refresh=2.0), "refresh=2.0"),
        (lambda: build("lsvrg", torch.ones(3), rate=2.0), "no setting 'rate'; it has base, refresh"),
        (lambda: build("uniform", torch.ones(3), floor=0.1), "no setting 'floor'; it has none"),
        (lambda: Uniform(3).load_state_dict({"point": torch.ones(1)}), "keeps nothing"),
        (lambda: LSVRG(Uniform(3)).load_state_dict({"point": torch.ones(1)}), r"expected 'gradient' and 'point'"),
        (
            lambda: LSVRG(Uniform(3)).load_state_dict({"point": torch.ones(1), "gradient": torch.ones(2)}),
            r"shapes \[\(1,\), \(2,\)\]",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_huge_scores_do_not_overflow() -> None:
    estimator = Importance(torch.full((4,), 1e308, dtype=torch.float64))
    torch.testing.assert_close(estimator.probability, torch.full((4,), 0.25, dtype=torch.float64))


def test_the_coin_moves_the_point_to_the_old_x_as_often_as_it_should() -> None:
    problem, generator = quadratics(0), torch.Generator().manual_seed(0)
    estimator = LSVRG(Uniform(9), refresh=0.25)
    estimator.gradient(problem, torch.zeros(4, dtype=torch.float64), estimator.draw(generator))
    moves = 0
    for step in range(1, 2001):
        x_old = torch.full((4,), float(step), dtype=torch.float64)
        estimator.after_step(problem, x_old, generator)
        assert estimator.point is not None
        moved = bool(torch.equal(estimator.point, x_old))
        moves += moved
        x_old.add_(1.0)  # the caller's tensor is its own
        assert not moved or float(estimator.point[0]) == step
    assert abs(moves - 500) < 4.5 * math.sqrt(2000 * 0.25 * 0.75)


def test_lsvrg_resumes_where_it_was() -> None:
    problem, x = quadratics(1), torch.ones(4, dtype=torch.float64)
    one, two = LSVRG(Uniform(9)), LSVRG(Uniform(9))
    assert one.nbytes() == 0
    one.gradient(problem, x, every_draw(one)[0])
    assert one.nbytes() == 2 * 4 * 8
    two.load_state_dict(one.state_dict())
    for sample in every_draw(one):
        assert torch.equal(one.gradient(problem, x + 1, sample), two.gradient(problem, x + 1, sample))
    two.load_state_dict({})
    assert two.point is None


# --- the trainer's side ---------------------------------------------------------------------------------------------


def test_the_sampler_gives_every_rank_and_pass_its_own_draws() -> None:
    estimator = Importance(torch.arange(1.0, 51.0))
    sampler = EstimatorSampler(estimator, seed=3)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(sampler) == 50
    assert first != second
    assert first != list(EstimatorSampler(estimator, seed=3, rank=1))
    assert first != list(EstimatorSampler(estimator, seed=4))
    again = EstimatorSampler(estimator, seed=3)
    again.set_epoch(1)
    assert list(again) == second
    assert len(list(EstimatorSampler(estimator, draws=10_000))) == 10_000
    with pytest.raises(ValueError, match="draws=0"):
        EstimatorSampler(estimator, draws=0)


def test_a_loader_brings_each_sample_with_its_weight() -> None:
    scores = torch.rand(30, generator=torch.Generator().manual_seed(0)) + 0.1
    data, estimator = TensorDataset(torch.arange(30), torch.arange(30) * 10), Importance(scores)
    loader = DataLoader(
        WeightedDataset(data, estimator), batch_size=8, sampler=EstimatorSampler(estimator, draws=100)
    )
    seen = 0
    for (x, y), weight in loader:
        assert weight.dtype == torch.float32
        assert torch.equal(y, x * 10)
        torch.testing.assert_close(weight, estimator.weight[x].float())
        seen += len(x)
    assert seen == 100
    with pytest.raises(ValueError, match="dataset has 30 samples, the estimator was made for 29"):
        WeightedDataset(data, Uniform(29))


class Net(nn.Module):
    """Two layers, one of them frozen in part."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 4), nn.Linear(4, 3)
        self.two.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))  # type: ignore[no-any-return]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def net_and_data() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net().double(), torch.randn(17, 5, dtype=torch.float64), torch.randint(0, 3, (17,))


def gradient_of(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


def test_a_module_is_the_sum_of_its_samples() -> None:
    net, inputs, targets = net_and_data()
    problem = ModuleSum(net, losses, inputs, targets, chunk=4)
    x = flat_parameters(net)
    assert problem.samples == 17
    assert x.numel() == 5 * 4 + 4 + 4 * 3
    before = x.clone()
    losses(net(inputs), targets).mean().backward()
    torch.testing.assert_close(problem.full_gradient(x), gradient_of(net))
    mean = torch.stack([problem.gradient(x, sample) for sample in every_draw(Uniform(17))]).mean(0)
    torch.testing.assert_close(mean, gradient_of(net))
    assert torch.equal(flat_parameters(net), before)


@pytest.mark.parametrize("name", ["lsvrg", "lsvrg-importance"])
def test_a_linear_term_gives_a_trainer_the_lsvrg_gradient(name: str) -> None:
    """As docs/estimators.md says: what autograd leaves in ``.grad`` is what the estimator would compute."""
    net, inputs, targets = net_and_data()
    problem = ModuleSum(net, losses, inputs, targets)
    estimator = made(name, inputs.square().sum(1))
    assert isinstance(estimator, LSVRG)
    generator = torch.Generator().manual_seed(0)
    estimator.correction(problem, flat_parameters(net), estimator.draw(generator))
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1)  # training has moved on
    x, sample = flat_parameters(net), estimator.draw(generator, 6)
    weighted = (losses(net(inputs[sample.indices]), targets[sample.indices]) * sample.weights).mean()
    (weighted + linear_term(net, estimator.correction(problem, x, sample))).backward()
    torch.testing.assert_close(gradient_of(net), estimator.gradient(problem, x, sample))


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_hooks_of_ddp_see_the_corrected_gradient() -> None:
    net, inputs, targets = net_and_data()
    problem, estimator = ModuleSum(net, losses, inputs, targets), LSVRG(Uniform(17))
    generator = torch.Generator().manual_seed(0)
    estimator.correction(problem, flat_parameters(net), estimator.draw(generator))
    with torch.no_grad():
        net.one.weight.add_(0.1)
    wrapped, seen = DistributedDataParallel(net), []

    def hook(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        seen.append(torch.cat([g.reshape(-1) for g in bucket.gradients()]).clone())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped.register_comm_hook(None, hook)
    x, sample = flat_parameters(net), estimator.draw(generator, 6)
    plain = losses(wrapped(inputs[sample.indices]), targets[sample.indices]).mean()
    (plain + linear_term(net, estimator.correction(problem, x, sample))).backward()
    expected = estimator.gradient(problem, x, sample)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].sort().values, expected.sort().values)
    torch.testing.assert_close(gradient_of(net), expected)


def test_a_module_that_is_no_sum_is_refused() -> None:
    inputs, targets = torch.randn(4, 5), torch.zeros(4)
    with pytest.raises(ValueError, match="'1' is BatchNorm in training mode"):
        ModuleSum(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), losses, inputs, targets)
    with pytest.raises(ValueError, match="4 inputs and 3 targets"):
        ModuleSum(nn.Linear(5, 3), losses, inputs, targets[:3])
    with pytest.raises(ValueError, match="chunk=0"):
        ModuleSum(nn.Linear(5, 3), losses, inputs, targets, chunk=0)
    mean = ModuleSum(nn.Linear(5, 1), lambda o, t: (o[:, 0] - t).square().mean(), inputs, targets)
    with pytest.raises(ValueError, match=r"loss has shape \(\), expected \(4,\)"):
        mean.full_gradient(torch.zeros(6))


def test_the_page_about_estimators_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "estimators.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "docs/estimators.md", "exec"), {"__name__": "page"})
    assert len(capsys.readouterr().out.split()) == 3
    listed = set(re.findall(r"^\| `([a-z]+)`", page, re.MULTILINE))
    assert listed == set(ESTIMATORS)


# --- the loop -------------------------------------------------------------------------------------------------------


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


def owed(memory: Memory) -> float:
    return sum(float(residual.double().square().sum()) for residual in memory.state_dict().values())


@pytest.mark.parametrize("compressor", ["topk", "randomk"])
def test_total_error_is_what_the_memories_hold(compressor: str) -> None:
    """sum_k sum_i ||u - C(u)||² = sum_k sum_i ||e_{k+1}||² / γ²: the memory keeps e / γ."""
    group = workers(compressor, "residual", "uniform")
    loop = ECSGD(torch.zeros(12, dtype=torch.float64), group, step_size=0.05, cf=6.0)
    held = 0.0
    for _ in range(40):
        step = loop.step()
        now = sum(owed(worker.memory) for worker in group)
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

        def gradient(self, problem: object, x: Tensor, sample: Sample) -> Tensor:
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
    owed_now = loop.step_size * mean_error
    assert float(owed_now.norm()) > 0.01
    torch.testing.assert_close(loop.x - owed_now, start - Recording.total, rtol=0, atol=1e-5)


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
        assert owed(group[0].memory) > 0


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
