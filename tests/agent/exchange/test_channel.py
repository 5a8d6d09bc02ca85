"""One bucket of one step on one rank, without a network: its sums, its payload, and the memory it allocates."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gravac import aggregators, memories
from gravac.aggregators import OneShot
from gravac.collectives.communicator import Communicator, Done
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Compressor, Dense, Key, Payload, Stack
from gravac.memories import Bucket
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.tick import StepSums
from tests.support.maths.backends import on

N = 40_000
BUCKET = Bucket(0, ("a", "b"), (N - 100, 100), ((N - 100,), (100,)))


class Twins(Communicator):
    """Two ranks that have the same gradients."""

    rank, size = 0, 2

    def sum(self, x: torch.Tensor) -> Done:
        x.mul_(2)
        return Done()

    def maximum(self, x: torch.Tensor) -> Done:
        return Done()

    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Done:
        out.view(2, -1).copy_(x.view(1, -1).expand(2, -1))
        return Done()

    def broadcast(self, x: torch.Tensor, root: int) -> Done:
        return Done()

    def exchange(self, out: torch.Tensor, x: torch.Tensor) -> Done:
        return self.gather(out, x.chunk(2)[0])

    def scatter_sum(self, out: torch.Tensor, x: torch.Tensor) -> Done:
        out.copy_(2 * x.chunk(2)[0])
        return Done()


def channels(compressor: str, memory: str, group: Communicator | None = None) -> Channels:
    codec, _, collective = compressor.partition(" by ")
    group = Twins() if group is None else group
    return Channels(
        memories.build(memory), (codec,), (aggregators.build(codec, group, collective or "auto"),)
    )


def gradients(scale: float = 1.0) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(N, generator=generator)
    while True:
        yield scale * (base + torch.randn(N, generator=generator))


def plan(cf: float, minimum: float, candidate: float) -> StepPlan:
    return StepPlan(Directive(1, "explore", minimum, candidate, 0.1), cf)


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("memory", ["none", "residual", "partial:beta=0.25", "momentum"])
@pytest.mark.parametrize(
    "compressor", ["topk", "topk+bf16", "topk+int8", "randomk", "int8", "topk+int8 by owners"]
)
def test_sums_are_those_of_the_tensors(compressor: str, memory: str, kernels: Any) -> None:
    """Computed from few elements or in passing, they equal those of the whole tensors."""
    with on(kernels):
        SimulatedWorld(2).run(lambda group: check_sums(compressor, memory, group))


def check_sums(compressor: str, memory: str, group: Communicator) -> None:
    ours, follower = channels(compressor, memory, group), memories.build(memory)
    part = follower.open(BUCKET)
    for step, gradient in zip(range(4), gradients(), strict=False):
        key = Key(0, step, 0, group.rank)
        cf = (5.0, 20.0, 1.0, 5.0)[step]
        p = part.compensate(gradient, dense=cf == 1.0).double().clone()
        sums, buffer = StepSums(), gradient.clone()
        transfer, raw, _ = ours.channel(BUCKET).encode(plan(cf, 5.0, 20.0), buffer, key, sums)
        if transfer is not None:
            assert torch.equal(buffer, gradient)
            sent = transfer.codec.decode(transfer.payload).double()
            held = part.update(transfer.codec, transfer.payload)
        else:
            assert not raw
            sent = p
            held = part.update(Dense(), None)
        share = 1.0 / follower.amplification
        residual = torch.zeros(N, dtype=torch.float64) if held is None else held.double() * share
        expected = StepSums(
            gradient_sq=float(gradient.double().square().sum()),
            compensated_sq=float(p.square().sum()),
            sent_sq=float(sent.square().sum()),
            residual_sq=float(residual.square().sum()),
            residual_dot_gradient=float(residual @ gradient.double()),
        )
        for name in ("gradient_sq", "compensated_sq", "sent_sq", "residual_sq"):
            assert getattr(sums, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-6), name
        slack = 1e-4 * (expected.gradient_sq * max(expected.residual_sq, 1e-9)) ** 0.5
        assert sums.residual_dot_gradient == pytest.approx(expected.residual_dot_gradient, abs=slack)
        assert sums.failed == sums.nonfinite == 0
        ours.commit()
        follower.commit()


@pytest.mark.parametrize(
    ("compressor", "times"),
    [
        ("nearest:levels=7", 0),
        ("blocksign", 0),
        ("dither:levels=5", 1),
        ("int8", 1),
        ("qsgd", 1),
        ("topk+bf16", 1),
    ],
)
def test_a_payload_is_decoded_at_most_once_and_its_tensor_is_freed(
    compressor: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Energy, alignment and residual all need what was sent: decoding for each took nearly half of the encoding.

    Codecs by ``nearest``'s kernel sum the energies while they round, and subtract while they read.
    """
    ours, gradient = channels(compressor, "residual"), next(gradients())
    assert isinstance(ours.aggregator, OneShot)
    codec = ours.aggregator.compressor
    codec = codec.quantizer if isinstance(codec, Stack) else codec
    decodes: list[Payload] = []
    decode = type(codec).decode

    def counted(self: Compressor, payload: Payload) -> torch.Tensor:
        decodes.append(payload)
        return decode(self, payload)

    monkeypatch.setattr(type(codec), "decode", counted)
    found = ours.channel(BUCKET).encode(plan(10.0, 10.0, 10.0), gradient, Key(0, 0, 0, 0), StepSums())
    assert found.transfer is not None
    assert len(decodes) == times
    kept = found.transfer.payload.decoded
    assert kept.tensor is kept.values is kept.energy is kept.inner is None


def test_a_sum_that_fails_half_way_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual stays as it was; what the buffer holds of an earlier step must not become part of it."""
    ours, source = channels("topk", "residual"), gradients()
    hold = plan(10.0, 10.0, 10.0)
    for step in range(3):
        ours.channel(BUCKET).encode(hold, next(source), Key(0, step, 0, 0), StepSums())
        ours.commit()
    before = ours.memory.state_dict()
    assert before

    def broken(gradient: torch.Tensor, residual: torch.Tensor, **more: Any) -> None:
        more["out"][:100] = 7.0
        raise RuntimeError("no kernel today")

    def broken_too(
        self: object, gradient: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, share: float
    ) -> None:
        broken(gradient, residual, out=out)

    with monkeypatch.context() as failing, on("cpu"):
        failing.setattr("gravac_agent.exchange.compensation.tally", broken)
        failing.setattr("gravac.kernels.Sifter.sift", broken_too)
        sums = StepSums()
        assert ours.channel(BUCKET).encode(hold, next(source), Key(0, 3, 0, 0), sums).transfer is not None
        assert sums.failed == 1
        ours.commit()
    after = ours.memory.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], residual) for name, residual in before.items())


class Fresh(TorchDispatchMode):
    """Records new tensors whose storage is no argument's, by bytes."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least, self.found = at_least, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        for made in _tensors(result):
            storage = made.untyped_storage()
            if storage.nbytes() >= self.at_least and storage.data_ptr() not in known:
                self.found.append(f"{func}: {storage.nbytes()} bytes")
        return result


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        yield from _tensors(list(thing.values()))
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from _tensors(one)


@pytest.mark.parametrize("compressor", ["topk", "topk+bf16", "topk+int8"])
def test_no_step_allocates_a_tensor_of_gradient_size(compressor: str) -> None:
    """After the first step: hold, both levels, and dense, with a residual."""
    with on("cpu"):
        ours, source = channels(compressor, "residual"), gradients()
        for step, cf in enumerate((10.0, 10.0, 100.0, 1.0, 1.0, 10.0)):
            gradient = next(source)
            with Fresh(4 * N) as fresh:
                encoded = ours.channel(BUCKET).encode(
                    plan(cf, 10.0, 100.0), gradient, Key(0, step, 0, 0), StepSums()
                )
                if encoded.transfer is not None:
                    encoded.transfer.mean_into(gradient)
                ours.commit()
            if step:
                assert fresh.found == []


def test_allocations_are_found() -> None:
    x = torch.ones(N)
    with Fresh(4 * N) as fresh:
        x.add_(1)
        x.view(-1)[:5]
    assert fresh.found == []
    with Fresh(4 * N) as fresh:
        x + 1
    assert len(fresh.found) == 1
