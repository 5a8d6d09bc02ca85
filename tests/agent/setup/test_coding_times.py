"""What plans take to encode and decode is measured on the job's own device, not looked up."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac.compressors.quantize.nearest import Nearest
from gravac.kernels import treated_as_device
from gravac.kernels.device import rounded, tiled
from gravac.policies import AutoPolicy, Plan
from gravac.protocol import PlanCost
from gravac_agent.devices import Device
from gravac_agent.devices.base import Timer
from gravac_agent.setup import coding_times
from gravac_agent.setup.coding_times import Coded, Gradient, measure_coding
from tests.support.streams.at_once import AtOnce
from tests.support.streams.device import SimulatedStream

ELEMENTS = 1 << 18
SEVEN, FIFTEEN = Plan("nearest:levels=7", 10.1), Plan("nearest:levels=15", 7.5)


def cost(plan: Plan, decoded: int | None = None) -> PlanCost:
    return PlanCost(
        codec=plan.codec, cf=plan.cf, payload_bytes=1, link_bytes=1.0, messages=1.0, decoded=decoded
    )


def measured(
    *costs: PlanCost,
    elements: int = ELEMENTS,
    buckets: int = 1,
    ranks: int = 2,
    device: Device | None = None,
) -> list[Coded]:
    gradient = Gradient(elements=elements, buckets=buckets, dtype=torch.float32, device=device)
    return measure_coding(costs, "topk+bf16", "residual", gradient, ranks)


def seconds(*costs: PlanCost, **named: Any) -> list[float]:
    found = measured(*costs, **named)
    assert not any(0.0 < each.host < math.inf for each in found)
    return [each.coding for each in found]


def busy(seconds: float) -> None:
    """Let this thread work; while it sleeps, others do."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def before_each(monkeypatch: pytest.MonkeyPatch, method: str, work: Callable[[], None]) -> None:
    """Do something before each call of a method of ``Nearest``."""
    original = getattr(Nearest, method)

    def slow(self: Nearest, *given: Any, **named: Any) -> Any:
        work()
        return original(self, *given, **named)

    monkeypatch.setattr(Nearest, method, slow)


def test_every_plan_of_auto_is_measured_and_the_random_numbers_of_the_trainer_stay() -> None:
    state = torch.get_rng_state()
    plans = AutoPolicy().plans("topk+bf16")
    found = dict(zip(plans, seconds(*map(cost, plans)), strict=True))
    assert found.pop(plans[0]) == 0.0, "dense is not coded"
    assert all(0.0 < each < 5.0 for each in found.values()), found
    assert torch.equal(torch.get_rng_state(), state)


def test_a_slow_machine_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding is done once, decoding as often as payloads arrive, and each bucket takes as long again."""

    def least(one: PlanCost, ranks: int = 2) -> float:  # the machine may be busy
        return min(seconds(one, ranks=ranks, buckets=2)[0] for _ in range(2))

    usual = least(cost(SEVEN))
    before_each(monkeypatch, "compress", lambda: busy(0.03))
    before_each(monkeypatch, "decompress", lambda: busy(0.02))
    two, eight, three = least(cost(SEVEN)), least(cost(SEVEN), ranks=8), least(cost(SEVEN, 3), ranks=8)
    assert two > usual + 2 * 0.03
    assert eight - two == pytest.approx(2 * 6 * 0.02, rel=0.4), "two buckets, six more payloads"
    assert eight - three == pytest.approx(2 * 5 * 0.02, rel=0.4)


def test_what_other_processes_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before_each(monkeypatch, "compress", lambda: time.sleep(0.3))
    assert all(each < 0.25 for each in seconds(cost(SEVEN), cost(FIFTEEN)))


def test_what_a_bucket_costs_whatever_its_size_counts_once_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding_times, "HOST_BYTES", ELEMENTS)  # a quarter of the elements
    before_each(monkeypatch, "compress", lambda: busy(0.02))

    def least(buckets: int) -> float:
        return min(seconds(cost(SEVEN), elements=16 * ELEMENTS, buckets=buckets)[0] for _ in range(2))

    assert 0.02 < least(1) < 0.4, "64 times as much would be 1.3 s"
    assert 0.08 < least(4) < 0.6


def test_what_cannot_be_measured_stays_as_stated() -> None:
    found = seconds(cost(Plan("nonsense", 10.0)), cost(Plan(None, 10.0)))
    assert math.isinf(found[0])
    assert 0.0 < found[1] < 5.0


class Busy(AtOnce):
    """A device that says how long it worked, and counts how often the host waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.worked = 0.0
        self.waits = 0

    def timer(self) -> Timer:
        return _Worked(self)

    def delay(self, seconds: float) -> None:
        self.worked += seconds

    def synchronize(self, stream: SimulatedStream) -> None:
        self.waits += 1


class _Worked(Timer):
    def __init__(self, device: Busy) -> None:
        self._device, self._marks = device, list[float]()

    def mark(self, stream: SimulatedStream) -> int:
        self._marks.append(self._device.worked)
        return len(self._marks) - 1

    def seconds(self, number: int) -> float:
        assert self._device.waits, "the device may not have reached the mark"
        return self._marks[number] - self._marks[0]

    def restart(self) -> None:
        self._marks = []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Busy:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return Busy()


def test_on_a_device_its_own_time_counts_and_that_of_the_host_for_each_bucket(
    device: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(seconds: float, host: float = 0.0) -> None:
        device.worked += seconds
        busy(host)

    before_each(monkeypatch, "compress", lambda: work(0.004, host=0.01))
    before_each(monkeypatch, "decompress", lambda: work(0.001))
    with treated_as_device():
        dense, plan, more = measured(
            cost(Plan(None, 1.0)), cost(SEVEN, 3), cost(FIFTEEN, 8), buckets=5, device=device
        )
    assert dense == Coded(0.0, 0.0)
    assert 5 * (0.004 + 3 * 0.001) <= plan.coding < 5 * 0.012, "and nothing of the delay before it"
    assert more.coding - plan.coding == pytest.approx(5 * 5 * 0.001, rel=1e-3), "of each other payload"
    assert 5 * 0.01 < plan.host < 5 * 0.2
    assert device.waits == 1


def test_a_device_is_measured_once(device: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    before_each(monkeypatch, "compress", lambda: calls.append(1))
    with treated_as_device():
        first = measured(cost(SEVEN), buckets=2, device=device)
        count = len(calls)
        assert measured(cost(SEVEN), buckets=2, device=device) == first
        assert len(calls) == count > 0, "the file of an earlier start has it"
        measured(cost(SEVEN), cost(FIFTEEN), buckets=2, device=device)
        assert len(calls) == 2 * count, "but not the other plan"
        twice = measured(cost(SEVEN), elements=2 * ELEMENTS, buckets=4, device=device)
        assert twice[0].host == 2 * first[0].host, "of each bucket"
        device.name = "another"
        measured(cost(SEVEN), buckets=2, device=device)
    assert len(calls) > 2 * count


def test_a_damaged_file_is_measured_again(device: Busy, tmp_path: Path) -> None:
    with treated_as_device():
        measured(cost(SEVEN), device=device)
        (file,) = tmp_path.glob("coding-*.json")
        file.write_text('{"nearest:levels=7@10.1": [[1]]}')
        assert 0.0 < measured(cost(SEVEN), device=device)[0].host < 5.0


def test_whole_messages_are_measured_as_they_are_sent(device: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding more ranks is one launch, so the host's time does not grow with them."""
    monkeypatch.setattr(coding_times, "gpu_kernels", lambda _: True)
    encode, decode = tiled.encode, tiled.decode

    def encoded(*given: Any) -> None:
        device.worked += 0.004
        encode(*given)

    def decoded(buffers: tiled.TiledBuffers, *given: Any) -> None:
        device.worked += 0.001 + 0.0005 * len(buffers.arrived)
        decode(buffers, *given)

    monkeypatch.setattr(tiled, "encode", encoded)
    monkeypatch.setattr(tiled, "decode", decoded)
    plan = Plan("topk+twobit", 16.6)
    with treated_as_device():
        two, eight = measured(cost(plan, 2), cost(plan, 8), buckets=5, device=device)
    assert two.coding == pytest.approx(5 * (0.004 + 0.0015 + 0.0005), rel=1e-3)
    assert eight.coding == pytest.approx(5 * (0.004 + 0.0015 + 7 * 0.0005), rel=1e-3)
    assert eight.host == two.host > 0.0


def test_messages_of_every_element_are_measured_as_they_are_sent(
    device: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding_times, "gpu_kernels", lambda _: True)
    encode, decode = rounded.encode, rounded.decode

    def encoded(*given: Any) -> None:
        device.worked += 0.004
        encode(*given)

    def decoded(group: Any, members: Any, counts: Any) -> None:
        device.worked += 0.001 + 0.0005 * len(group.arrived)
        decode(group, members, counts)

    monkeypatch.setattr(rounded, "encode", encoded)
    monkeypatch.setattr(rounded, "decode", decoded)
    with treated_as_device():
        two, eight = measured(cost(SEVEN, 2), cost(SEVEN, 8), buckets=5, device=device)
    assert two.coding == pytest.approx(5 * (0.004 + 0.0015 + 0.0005), rel=1e-3)
    assert eight.coding == pytest.approx(5 * (0.004 + 0.0015 + 7 * 0.0005), rel=1e-3)
    assert eight.host == two.host > 0.0
