"""Estimators at the trainer's side: the sampler, weights with the data, a module as the sum of its samples."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.nn.parallel import DistributedDataParallel

from gravac_lab.estimators import ESTIMATORS, LSVRG, Uniform
from gravac_lab.estimators.module_sum import ModuleSum, flat_parameters, linear_term
from lab.tests.support.quadratics import every_draw, made


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
    page = (Path(__file__).parents[3] / "docs" / "estimators.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, "docs/estimators.md", "exec"), {"__name__": "page"})
    assert len(capsys.readouterr().out.split()) == 3
    listed = set(re.findall(r"^\| `([a-z]+)`", page, re.MULTILINE))
    assert listed == set(ESTIMATORS)
