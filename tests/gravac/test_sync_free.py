"""Sync-free codecs and aggregators read nothing from a device, and do there what they do on the host, to the bit."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.aggregators import AGGREGATORS, OneShot, build_sharded
from gravac.aggregators.base import Aggregator
from gravac.collectives import ALONE, COLLECTIVES, AllReduce, Communicator
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Compressor, Key, Payload, TopK, build
from tests.support.maths import members
from tests.support.maths.aggregator_checks import BUCKETS, made
from tests.support.maths.checks import KEY, vector
from tests.support.maths.sync_free import ReadsTheDevice, Watch, reads

NAMES = members.texts()
FREE = members.having("sync_free", NAMES)
PLAIN = [name for name in FREE if ":" not in name]
CFS = (4.0, 30.0)
INPUTS = {
    "gauss": lambda: vector("gauss", 300),
    "network": lambda: vector("heavy", 1100),  # more than the draws put in order
    "zero": lambda: torch.zeros(100),
    "ties": lambda: torch.tensor([1.0, -1.0, 2.0] * 30),
    "one": lambda: vector("gauss", 1),
}


def step(codec: Compressor, x: Tensor, cfs: tuple[float, ...] = CFS) -> list[Any]:
    """All that a step does with a codec: payloads, decoded tensors and energies."""
    found: list[Any] = []
    for payload in codec.levels(x, cfs, KEY, torch.float32):
        arrived = codec.layout(x.numel(), payload.cf, torch.float32).unpack(payload.pack(), KEY)
        mean, residual = torch.zeros_like(x), x.clone()
        codec.decompress(arrived, mean, 0.5)
        codec.remove(payload, residual)
        found += [*payload.parts, codec.decode(arrived), mean, residual]
        found += [codec.energy(payload), codec.inner(payload, x), codec.kept_energy(payload, x)]
        payload.forget()
    for value in (0.0, math.nan):
        blank = codec.blank(x.numel(), cfs[0], KEY, torch.float32, x.device, value)
        found += [
            *blank.parts,
            codec.decode(codec.layout(x.numel(), cfs[0], torch.float32).unpack(blank.pack(), KEY)),
        ]
    if codec.traits.nested:
        found += codec.narrow(codec.compress(x, cfs[0], KEY, torch.float32), cfs[-1]).parts
    return found


def watched(codec: Compressor, x: Tensor, cfs: tuple[float, ...] = CFS) -> list[Any]:
    watch = Watch()
    with watch.watching():
        return step(codec, watch.device(x), cfs)


def same(device: list[Any], host: list[Any]) -> None:
    """Tensors are equal to the bit, and energies, which are numbers or float64, to rounding."""
    assert len(device) == len(host)
    for mine, other in zip(device, host, strict=True):
        if isinstance(other, Tensor) and other.dtype == torch.float64:
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=0.0)
        elif isinstance(other, Tensor):
            assert torch.equal(bits(mine), bits(other))
        else:
            assert isinstance(mine, Tensor)
            assert math.isclose(float(mine), other, rel_tol=1e-5, abs_tol=1e-38) or (
                not math.isfinite(other) and not bool(mine.isfinite())
            )


def bits(x: Tensor) -> Tensor:
    """The elements as bytes; every NaN has the same."""
    return (torch.where(x.isnan(), torch.nan, x) if x.is_floating_point() else x).view(torch.uint8)


@pytest.mark.parametrize("name", FREE)
def test_it_reads_nothing_and_does_what_the_host_does(name: str) -> None:
    for kind, make in INPUTS.items():
        for cfs in (CFS, (1.0, 1e9)) if kind == "gauss" else (CFS,):
            same(watched(build(name), make(), cfs), step(build(name), make(), cfs))


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FREE)))
def test_others_read(name: str) -> None:
    """Else they should say that they do not."""
    assert reads(lambda x: step(build(name), x), vector("gauss", 300))


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_not_finite_never_vanishes(name: str, bad: float) -> None:
    """No exception, sizes as ever, and a step that shows it."""
    codec, x = build(name), vector("gauss", 300)
    x[100] = bad
    watch = Watch()
    with watch.watching():
        sq = kernels.energy(watch.device(x))
        found = step(codec, x)
    assert not bool(torch.as_tensor(sq).isfinite())
    assert any(not bool(one.isfinite().all()) for one in found[: len(found) // 2] if one.is_floating_point())
    assert [one.shape for one in found] == [
        one.shape if isinstance(one, Tensor) else () for one in step(codec, x)
    ]


@pytest.mark.parametrize("name", PLAIN)
def test_on_the_meta_device_there_is_nothing_to_read(name: str) -> None:
    """Copies from the host that wait are seen there, too."""
    watch, x = Watch(), torch.empty(1100, device="meta")
    with watch.watching():
        found = step(build(name), x)
    assert all(one.is_meta for one in found)
    assert [one.shape for one in found] == [
        one.shape if isinstance(one, Tensor) else () for one in step(build(name), vector("gauss", 1100))
    ]


AGGREGATED = [
    *(
        *PLAIN,
        *AGGREGATORS,
        "topk by shared",
        "topk+nearest:levels=15 by shared",
        "topk by shared:leader=turns",
        "topk by owners",
        "topk+twobit by owners",
    ),
    *("int8 by compressed-all-reduce", "topk by all-reduce"),
]
READING = ("topk by shared:leader=largest", "dgc", "svd")
STEPS = ((4.0, False), (9.0, True), (30.0, False), (4.0, True))
"""CF, and whether the step counts."""


def steps(aggregator: Aggregator, device: str = "cpu", watch: Watch | None = None) -> list[Any]:
    """Steps with two buckets in flight, on the host or watched."""
    found: list[Any] = []
    with nullcontext() if watch is None else watch.watching():
        for number, (cf, counts) in enumerate(STEPS):
            flights = []
            for one in BUCKETS[:2]:
                key = Key(3, number, one.number, aggregator.communicator.rank)
                x = vector("gauss", sum(one.numels), 10 * number + key.rank).to(device, non_blocking=True)
                if watch is not None:
                    watch.device(x)
                if counts:
                    draft = aggregator.open(one).prepare(x, (cf, 30.0), key, torch.float32)
                else:
                    draft = aggregator.open(one).blank(cf, key, torch.float32, x.device, math.nan)
                found += [draft.kept_energy(cf)] if counts else []
                flights.append((x, draft.send(cf)))
            for x, flight in flights:
                flight.work.wait()
                mean, residual = torch.empty_like(x), x.clone()
                flight.mean_into(mean)
                flight.codec.remove(flight.payload, residual)
                found += [mean, residual, flight.codec.energy(flight.payload)]
                found.append(flight.codec.inner(flight.payload, x))
                flight.payload.forget()
            if watch is None:
                (aggregator.commit if counts else aggregator.rollback)()
            else:
                aggregator.commit_where(watch.device(torch.tensor(counts).to(device, non_blocking=True)))
    learned = sorted(aggregator.state_dict().items()) if device == "cpu" else []
    return [*found, *(value for _, value in learned)]


def world(text: str, each: Callable[[Aggregator], list[Any]]) -> list[list[Any]]:
    def body(communicator: Communicator) -> list[Any]:
        return each(made(text, communicator))

    return SimulatedWorld(2, timeout_seconds=10.0).run(body)


@pytest.mark.parametrize("text", AGGREGATED)
def test_an_aggregator_on_a_device_does_what_it_does_on_the_host(text: str) -> None:
    """With changing CFs and steps that do not count, whose state nobody reads."""
    watch = Watch()
    device = world(text, lambda aggregator: steps(aggregator, watch=watch))
    for mine, other in zip(device, world(text, steps), strict=True):
        same(mine, other)
    assert all(free is True for (free,) in world(text, lambda aggregator: [aggregator.sync_free]))


@pytest.mark.parametrize(
    "text",
    [
        "topk+bf16",
        "randomk",
        "int8",
        *AGGREGATORS,
        "topk+nearest:levels=15 by shared",
        "topk+twobit by owners",
        "int8 by compressed-all-reduce",
    ],
)
def test_an_aggregator_on_the_meta_device_reads_nothing(text: str) -> None:
    (found,) = SimulatedWorld(1).run(lambda alone: steps(made(text, alone), "meta", Watch()))
    assert all(one.is_meta for one in found)


@pytest.mark.parametrize("text", READING)
def test_aggregators_that_read_say_so(text: str) -> None:
    assert all(free is False for (free,) in world(text, lambda aggregator: [aggregator.sync_free]))
    watch = Watch()
    with pytest.raises(ReadsTheDevice):
        world(text, lambda aggregator: steps(aggregator, watch=watch))


@pytest.mark.parametrize("name", ["topk+bf16", "int8", "blockrandomk", "svd"])
def test_a_reduce_scatter_of_shards_is_as_free_as_its_codec(name: str) -> None:
    one, watch = BUCKETS[3], Watch()

    def each(communicator: Communicator) -> bool:
        aggregator = build_sharded(name, communicator)
        x = watch.device(vector("gauss", 210, communicator.rank))
        with watch.watching():
            key = Key(3, 0, 3, communicator.rank)
            flight = aggregator.open(one).prepare(x, (4.0,), key, torch.float32).send(4.0)
            flight.work.wait()
            flight.mean_into(torch.empty(105))
            aggregator.commit_where(watch.device(torch.tensor(True)))
        return aggregator.sync_free

    if build(name).traits.sync_free:
        assert SimulatedWorld(2).run(each) == [True, True]
    else:
        with pytest.raises(ReadsTheDevice):
            SimulatedWorld(2).run(each)


def test_all_that_the_cost_model_may_choose_is_free() -> None:
    assert all(kind(ALONE).sync_free for kind in COLLECTIVES.values())
    assert OneShot(build("topk+int8"), ALONE).sync_free


class Liar(TopK):
    """Says that it is sync-free, as Top-k is, and looks at a number."""

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return super().compress(x, max(cf, float(x.abs().amax())), key, dtype)

    def levels(self, x: Tensor, cfs: Any, key: Key, dtype: torch.dtype, hint: Any = None) -> list[Payload]:
        return super().levels(x, cfs, key, dtype, hint) if float(x[0]) else []


def test_a_codec_that_reads_and_says_that_it_does_not_is_found() -> None:
    assert Liar().traits.sync_free
    for x in (vector("gauss", 300), torch.empty(300, device="meta")):
        with pytest.raises(ReadsTheDevice, match="reads a tensor of the device"):
            watched(Liar(), x)


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float((2 * x).sum()),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x.abs().sum() > 3 else 0,
    "tolist": lambda x: x.cumsum(0).tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked write": lambda x: x.__setitem__(x > 0, torch.zeros(())),
    "masked select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: torch.bincount(x.abs().long()),
    "tensor of tensors": lambda x: torch.tensor([x[0], x[1]]),
    "equal": lambda x: torch.equal(x, x),
    "repeat": lambda x: x.repeat_interleave(x.abs().long()),
    "written": lambda x: torch.empty(3).copy_(x[:3]).tolist(),
    "summed in place": lambda x: float(torch.zeros(300).add_(x)[0]),
}


@pytest.mark.parametrize("way", READS)
def test_every_way_to_read_is_seen(way: str) -> None:
    assert reads(READS[way], vector("gauss", 300))


@pytest.mark.parametrize(
    "copy",
    [
        lambda: torch.tensor([1.0, 2.0], device="meta"),
        lambda: torch.zeros(3).to("meta"),
        lambda: torch.empty(3, device="meta").copy_(torch.zeros(3)),
    ],
)
def test_copies_from_the_host_that_wait_are_seen(copy: Callable[[], object]) -> None:
    with Watch().watching(), pytest.raises(ReadsTheDevice):
        copy()


def test_the_host_s_own_tensors_may_be_read() -> None:
    with Watch().watching():
        assert torch.arange(4).tolist() == [0, 1, 2, 3]
    assert not reads(lambda x: float(torch.ones(3).sum()) * x, vector("gauss", 300))
    assert AllReduce.sync_free
