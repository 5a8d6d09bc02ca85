"""A step of Adam by age: the compiled kernel against plain torch, to the bit; what nobody sent stays."""

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.kernels import FINE, OLDEST, STEP, AgedStep, treated_as_device
from gravac.optim.adam import aged_rule
from tests.support.maths.backends import everywhere, on, same, vector

HOST = torch.device("cpu")
RATES = torch.tensor([3e-3, 1e-8, 0.99, 0.0, 0.0])
L2 = torch.tensor([3e-3, 1e-8, 1.0, 0.1, 0.0])
SKIP = torch.tensor([3e-3, 1e-8, 0.99, 0.0, 1.0])


def step(
    n: int,
    part: float | None,
    rates: Tensor = RATES,
    dtype: torch.dtype = torch.float32,
    kind: str = "mixed",
    ranks: int = 1,
    growth: float = 1.0,
    nonzero: bool = False,
) -> tuple[Tensor, ...]:
    """Parameters, moments and ages after a step in which a part of the elements arrived; None: without a mask."""
    param, grad, m = (vector(n, seed, kind).to(dtype) for seed in (1, 2, 3))
    v = vector(n, 4, kind).square().to(dtype)
    if nonzero:
        thin(grad)
    age, arrived = ages(n), None if part is None else came(n, part)
    if arrived is not None and ranks > 1:
        arrived = arrived * torch.randint(1, ranks + 1, (n,), dtype=torch.uint8, generator=draw(n))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    table = aged_rule(0.9, 0.999, False, wide, HOST)
    aged = AgedStep(param, grad, m, v, age, arrived, 1 / ranks, growth, nonzero)
    kernels.step_aged([aged], table, rates.to(wide)[None], 0.9)
    return param, m, v, age


def draw(n: int) -> torch.Generator:
    return torch.Generator().manual_seed(n)


def ages(n: int) -> Tensor:
    """Some are beyond those that have rows of their own."""
    found = torch.randint(STEP, 3 * FINE, (n,), generator=draw(n)).to(torch.int16)
    found[: n // 9] = OLDEST
    return found


def came(n: int, part: float) -> Tensor:
    return torch.rand(n, generator=draw(n + 1)) < part


def thin(grad: Tensor) -> None:
    """Make most elements 0, some -0.0, which is 0, and some NaN, which is not."""
    n = grad.numel()
    grad *= torch.rand(n, generator=draw(n + 2)) < 0.4
    grad[: n // 50] = torch.tensor([-0.0, torch.nan]).repeat(n)[: n // 50]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("part", [None, 0.0, 0.03, 0.6, 1.0])
def test_every_backend_gives_the_same(part: float | None, dtype: torch.dtype) -> None:
    for n in (0, 1, 200, 700, 5000):
        for rates in (RATES, L2, SKIP):
            everywhere(lambda n=n, rates=rates: step(n, part, rates, dtype))
    for ranks in (2, 3, 255):
        everywhere(lambda ranks=ranks: step(3000, part, L2, dtype, ranks=ranks))
    everywhere(lambda: step(3000, part, dtype=dtype, kind="wild"))
    for growth in (1e-6, 0.37, 1.02, 50.0, 1e12):
        for rates in (RATES, SKIP):
            everywhere(lambda growth=growth, rates=rates: step(3000, part, rates, dtype, growth=growth))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("part", [None, 0.03, 0.6])
def test_what_is_not_zero_has_arrived(part: float | None, dtype: torch.dtype) -> None:
    """The same as with the senders that are meant, on every backend."""
    for n, ranks in ((0, 1), (1, 1), (200, 1), (3000, 1), (3000, 3), (700, 255)):
        found = everywhere(
            lambda n=n, ranks=ranks: step(n, part, L2, dtype, "normal", ranks, 0.37, nonzero=True)
        )
        param, grad, m = (vector(n, seed, "normal").to(dtype) for seed in (1, 2, 3))
        v, age = vector(n, 4, "normal").square().to(dtype), ages(n)
        thin(grad)
        senders = torch.full((n,), 1 if part is None else ranks, dtype=torch.uint8)
        if part is not None:
            sent = came(n, part)
            many = torch.randint(1, ranks + 1, (n,), dtype=torch.uint8, generator=draw(n)) if ranks > 1 else 1
            senders = torch.where(sent, many, senders)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        table = aged_rule(0.9, 0.999, False, wide, HOST)
        senders = senders * (grad != 0)
        aged = AgedStep(param, grad, m, v, age, senders, 1 / ranks, 0.37)
        kernels.step_aged([aged], table, L2.to(wide)[None], 0.9)
        same(found, (param, m, v, age))


def test_what_waited_grows_and_this_step_does_not() -> None:
    """Ages of 1, 3 and 200 steps, and the largest, of which this step is one; a skipped step changes only them."""
    age = torch.tensor([STEP, 3 * STEP, 200 * STEP, OLDEST], dtype=torch.int16)
    assert kernels.grown(age, 1.0).tolist() == age.tolist()
    assert kernels.grown(age, 0.25).tolist() == [
        STEP,
        STEP + STEP // 2,
        199 * STEP // 4 + STEP,
        (OLDEST - STEP + 2) // 4 + STEP,
    ]
    assert kernels.grown(age, 1e9).tolist() == [STEP, *3 * [OLDEST]]
    found = step(3000, 0.5, SKIP, growth=0.25)
    same(found[:3], step(3000, 0.5, SKIP)[:3])
    assert torch.equal(found[3].int(), kernels.grown(ages(3000), 0.25))
    grown = step(3000, 0.0, growth=0.25)[3]
    assert torch.equal(grown.int(), (kernels.grown(ages(3000), 0.25) + STEP).clamp(max=OLDEST))


def test_sixteen_bits_are_stepped_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = everywhere(lambda: step(1000, 0.3, dtype=torch.bfloat16))
    monkeypatch.setattr(kernels.reference, "AT_ONCE", 300)
    same(everywhere(lambda: step(1000, 0.3, dtype=torch.bfloat16)), whole)


def test_on_a_device_the_host_reads_nothing() -> None:
    """Tensors of the meta device have no data, so code that reads them raises."""
    floats = [torch.empty(9, device="meta") for _ in range(4)]
    age = torch.empty(9, dtype=torch.int16, device="meta")
    with on("reference"):
        for arrived in (None, age > 0):
            table = torch.empty(2, kernels.AGE_ROWS, 2, device="meta")
            kernels.step_aged([AgedStep(*floats, age, arrived)], table, RATES.to("meta")[None], 0.9)
    with treated_as_device():
        found = step(700, 0.3), step(700, 0.3, SKIP)
    same(found, (step(700, 0.3), step(700, 0.3, SKIP)))


def test_tensors_that_are_not_contiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another order of memory, all or one: a mask, say. Where all are, it is the compiled kernel's step too."""

    def run(order: tuple[int, ...], mask_too: bool = True) -> tuple[Tensor, ...]:
        shape = [(2, 3, 4, 5)[place] for place in order]
        back = [order.index(place) for place in range(4)]
        made = [torch.empty(shape).permute(back) for _ in range(4)]
        for number, one in enumerate(made):
            one.copy_(vector(120, number, "normal").abs().view(2, 3, 4, 5))
        age = torch.empty(shape, dtype=torch.int16).permute(back).fill_(700)
        arrived = (vector(120, 9, "normal") > 0).view(2, 3, 4, 5)
        if mask_too:
            arrived = torch.empty(shape, dtype=torch.bool).permute(back).copy_(arrived)
        table = aged_rule(0.9, 0.999, False, torch.float32, HOST)
        kernels.step_aged([AgedStep(*made, age, arrived)], table, RATES[None], 0.9)
        return *made, age

    plain = run((0, 1, 2, 3))
    same(run((0, 2, 3, 1), mask_too=False), plain)
    monkeypatch.delattr(kernels.adam, "_plain")
    with on("cpu"):
        same(run((0, 2, 3, 1)), plain)


def test_what_did_not_arrive_goes_on_by_its_first_moment() -> None:
    """Its second moment keeps its bits, its gradient does not matter, and no age passes the largest."""
    n = 2000
    param, m, v, age = step(n, 0.0, kind="normal")
    before, first, second = (vector(n, seed, "normal") for seed in (1, 3, 4))
    torch.testing.assert_close(param, before * 0.99 - 3e-3 * 0.9 * first / (second.abs() + 1e-8))
    torch.testing.assert_close(m, first * 0.9)
    same(v, second.square())
    assert torch.equal(age.long(), (ages(n).long() + STEP).clamp(max=OLDEST))
    assert step(n, None)[3].eq(STEP).all()
    same(step(n, 0.5, SKIP)[:2], (vector(n, 1), vector(n, 3)))
