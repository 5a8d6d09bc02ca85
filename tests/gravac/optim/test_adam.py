"""``gravac.optim``: torch's step to the bit while all elements arrive, the step by age, states, groups, scalers."""

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from gravac import kernels, optim
from gravac.kernels import OLDEST, STEP
from gravac.optim.adam import PLAIN, adopt, aged_rule
from tests.support.maths.backends import on, same

Pair = tuple[type[torch.optim.Optimizer], type[torch.optim.Optimizer]]
PAIRS: list[Pair] = [(optim.AdamW, torch.optim.AdamW), (optim.Adam, torch.optim.Adam)]
WAYS: list[dict[str, Any]] = [{}, {"fused": True}, {"foreach": False}]
pairs = pytest.mark.parametrize(("ours", "torchs"), PAIRS)


class Recurrent(nn.Module):
    """Reads rows of words and names one more."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader, self.name = nn.Embedding(20, 8), nn.LSTM(8, 12), nn.Linear(12, 5)

    def forward(self, rows: Tensor) -> Tensor:
        return self.name(self.reader(self.words(rows.T))[0][-1])


def images() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5))
    return body.to(memory_format=torch.channels_last)


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 30), nn.LayerNorm(30), nn.GELU(), nn.Linear(30, 5))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "rows": (rows, lambda draw: torch.randn(16, 10, generator=draw)),
    "images": (images, lambda draw: torch.randn(4, 3, 6, 6, generator=draw)),
    "recurrent": (Recurrent, lambda draw: torch.randint(20, (8, 6), generator=draw)),
}


def state_of(optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
    return [item for one in optimizer.state.values() for item in sorted(one.items())]


@pytest.mark.parametrize("model", MODELS)
def test_without_supports_it_is_torchs_step_to_the_bit(model: str) -> None:
    """1,000 steps, with foreach, fused and neither; one hears in each step that everything arrived."""
    make, inputs = MODELS[model]
    torch.manual_seed(1)
    module, draw = make(), torch.Generator().manual_seed(2)
    kinds = [(kind, way) for way in WAYS for kind in (torch.optim.AdamW, optim.AdamW)]
    copies = [copy.deepcopy(list(module.parameters())) for _ in range(len(kinds) + 1)]
    optimizers = [
        kind(params, lr=3e-3, **way)
        for (kind, way), params in zip([*kinds, (optim.AdamW, {})], copies, strict=True)
    ]
    everything = {param: torch.ones_like(param, dtype=torch.bool) for param in copies[-1]}
    for number in range(1000):
        module.zero_grad()
        cross_entropy(
            module(inputs(draw)), torch.randint(5, (module_rows(model),), generator=draw)
        ).backward()
        optimizers[-1].arrived(everything)
        for optimizer, params in zip(optimizers, copies, strict=True):
            if number == 500:
                optimizer.param_groups[0].update(lr=1e-3, weight_decay=0.1)
            for param, led in zip(params, module.parameters(), strict=True):
                param.grad = led.grad
            optimizer.step()
        with torch.no_grad():
            for param, led in zip(module.parameters(), copies[0], strict=True):
                param.copy_(led)
    for mine, theirs in ((1, 0), (3, 2), (5, 4), (6, 0)):
        same(tuple(copies[mine]), tuple(copies[theirs]))
        same(tuple(state_of(optimizers[mine])), tuple(state_of(optimizers[theirs])))


def module_rows(model: str) -> int:
    return {"rows": 16, "images": 4, "recurrent": 8}[model]


def moved(optimizer: Any, gradients: Tensor, age: int) -> Tensor:
    """How far a parameter goes in steps with gradients of shape (steps, n) that arrive in each ``age``-th."""
    param: Tensor = optimizer.param_groups[0]["params"][0]
    before, waiting = param.detach().clone(), torch.zeros_like(param)
    for number, gradient in enumerate(gradients, 1):
        waiting += gradient
        come = number % age == 0
        if age > 1:
            optimizer.arrived({param: torch.full_like(waiting, come, dtype=torch.bool)})
        param.grad = waiting * come
        waiting *= not come
        optimizer.step()
    return param.detach() - before


@pytest.mark.parametrize("age", [2, 8, 64])
def test_noise_moves_as_with_adam_and_a_constant_gradient_less(age: int) -> None:
    """Squares of noise add up, so u²/a is right for it. A constant gradient has a² of them, and moves √a less."""
    n, draw = 500, torch.Generator().manual_seed(age)
    gradients = torch.cat([torch.randn(640, n, generator=draw), torch.full((640, 1), 0.25)], 1)
    dense = moved(torch.optim.AdamW([nn.Parameter(torch.zeros(n + 1))], weight_decay=0.0), gradients, 1)
    mine = moved(optim.AdamW([nn.Parameter(torch.zeros(n + 1))], weight_decay=0.0), gradients, age)
    noise = float(mine[:n] @ dense[:n] / (dense[:n] @ dense[:n]))
    assert noise == pytest.approx(1.0, abs=0.03 + age / 500)
    assert float(mine[n] / dense[n]) == pytest.approx(age**-0.5, rel=0.02)


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_an_arrival_is_the_steps_that_it_waited(beta1: float) -> None:
    """With a v that never changes, m and the parameter are those of Adam with u/a in each of these steps."""
    table = aged_rule(beta1, 0.999, False, torch.float64, torch.device("cpu")).clone()
    table[1] = torch.tensor([1.0, 0.0])  # v stays 0, and ε is 1
    rates = torch.tensor([0.01, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    param, m, v = torch.zeros(3, 1, dtype=torch.float64)
    age, wants, moment = torch.full((1,), STEP, dtype=torch.int16), torch.zeros(1, dtype=torch.float64), 0.0
    for waited, u in ((1, 2.0), (5, -3.0), (64, 1.0), (1, 0.5), (17, 4.0)):
        for number in range(1, waited + 1):
            come = torch.tensor([number == waited])
            gradient = torch.full((1,), u if come else 7.0, dtype=torch.float64)
            aged = kernels.AgedStep(param, gradient, m, v, age, come)
            kernels.step_aged([aged], table, rates[None], beta1)
            moment = beta1 * moment + (1 - beta1) * u / waited
            wants -= 0.01 * moment
        assert float(m) == pytest.approx(moment, rel=1e-12)
        assert float(param) == pytest.approx(float(wants), rel=1e-12)


@dataclass
class Element:
    """An element of a parameter, stepped by the rule as it is written down."""

    x: float
    decay: float
    l2: float
    sign: float
    m: float = 0.0
    v: float = 0.0

    def step(self, time: int, u: float = 0.0, wait: float = 0.0, age: float = 0.0) -> None:
        """``age`` steps' worth arrive of the ``wait`` that waited; 0: nothing."""
        rest = 0.0
        self.m *= 0.8
        if age:
            u = self.sign * u + self.l2 * age * self.x
            later = (1 - 0.8**wait) / (wait * (1 - 0.8))
            self.m += (1 - 0.8) * later * u
            self.v = 0.95**age * self.v + (1 - 0.95**age) * u * u / age
            rest = (1 - later) * u
        root = (self.v / (1 - 0.95**time)) ** 0.5 + 1e-3
        self.x = self.x * self.decay - 0.01 / (1 - 0.8**time) * (self.m + rest) / root


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adam])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_rule_by_hand(backend: Any, kind: Any, maximize: bool) -> None:
    """Of four ranks, all, two and one send an element. Another one never arrives."""
    param = nn.Parameter(torch.tensor([0.5, -2.0], dtype=torch.float64))
    optimizer = kind([param], lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, maximize=maximize)
    decay, l2 = (1 - 0.01 * 0.1, 0.0) if kind is optim.AdamW else (1.0, 0.1)
    one, other = (Element(x, decay, l2, -1.0 if maximize else 1.0) for x in (0.5, -2.0))
    senders, wait = {2: 4, 3: 2, 6: 1, 7: 1, 8: 3}, 0.0
    with on(backend):
        for time in range(1, 9):
            ranks = senders.get(time, 0)
            optimizer.arrived({param: torch.tensor([ranks, 0], dtype=torch.uint8)}, 4)
            param.grad = torch.tensor([0.3 * time, 0.0], dtype=torch.float64)
            optimizer.step()
            wait += 1.0
            came = round(wait * ranks / 4 * STEP) / STEP
            one.step(time, 0.3 * time, wait, came)
            other.step(time)
            wait -= came
    state = optimizer.state[param]
    assert param.tolist() == pytest.approx([one.x, other.x], rel=1e-12)
    assert state["exp_avg"].tolist() == pytest.approx([one.m, 0.0], rel=1e-12)
    assert state["exp_avg_sq"].tolist() == pytest.approx([one.v, 0.0], rel=1e-12)
    assert state["age"].tolist() == [(wait + 1) * STEP, 9 * STEP]
    assert state["age"].dtype == torch.int16


@pytest.mark.parametrize("whole", [False, True])
def test_the_gradient_tells_what_arrived_and_counts_from_how_many(whole: bool) -> None:
    """Of a count where nothing arrived, and of an element that none sent, nothing is believed. An empty support counts
    none. Where all arrived from all ranks, it is torch's step, with no age.
    """
    one, other = made()[:2], made()[:2]
    optimizer, plain = optim.AdamW(one), (torch.optim.AdamW if whole else optim.AdamW)(other)
    for number in range(3):
        grads = [torch.randn(param.shape, generator=torch.Generator().manual_seed(number)) for param in one]
        grads = grads if whole else [grad * (grad > 0.3) for grad in grads]
        counts = torch.full(one[0].shape, 4, dtype=torch.uint8)
        counts[0], counts[1] = 0, 4 if whole else 1
        for params in (one, other):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.clone()
        optimizer.arrived({one[0]: counts, one[1]: torch.empty(0, dtype=torch.uint8)}, 4, nonzero=True)
        if not whole:
            counts = torch.where(counts == 0, 4, counts) * (grads[0] != 0)
            plain.arrived({other[0]: counts, other[1]: 4 * (grads[1] != 0).to(torch.uint8)}, 4)
        optimizer.step()
        plain.step()
    for param, twin in zip(one, other, strict=True):
        mine, theirs = optimizer.state[param], plain.state[twin]
        assert mine.keys() == theirs.keys()
        assert ("age" in mine) is not whole
        same((param, *mine.values()), (twin, *(theirs[key] for key in mine)))


def trained(
    optimizer: Any,
    steps: range,
    share: float | None,
    params: list[nn.Parameter] | None = None,
    ranks: int = 1,
) -> None:
    """Steps with gradients and supports that follow from the step's number; ``share`` None: without supports."""
    params = params or [param for group in optimizer.param_groups for param in group["params"]]
    for number in steps:
        draw = torch.Generator().manual_seed(number)
        supports = {}
        for param in params:
            gradient = torch.randn(param.shape, generator=draw)
            come = torch.rand(param.shape, generator=draw) < (share or 0.0)
            param.grad = (gradient if share is None else gradient * come).to(param.dtype)
            supports[param] = come
            if ranks > 1:
                supports[param] = come * torch.randint(1, ranks, param.shape, generator=draw).to(torch.uint8)
        if share is not None:
            optimizer.arrived(supports, ranks)
        optimizer.step()


def made(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    shapes: Iterator[tuple[int, ...]] = iter([(7, 9), (9,), (2, 3, 4, 5), ()])
    return [nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in shapes]


def arrived(optimizer: torch.optim.Optimizer, param: Tensor) -> Tensor:
    """Which elements arrived in the last step."""
    age: Tensor = optimizer.state[param].get("age", torch.full_like(param, STEP))
    return age == STEP


@pairs
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_step_of_a_part_is_torchs_where_all_ages_are_one(
    ours: Any, torchs: Any, way: dict[str, Any]
) -> None:
    """But for the last bit. Elements that did not arrive step as with a gradient of zero, and their v stays."""
    mine, plain = made(), made()
    one, other = ours(mine, weight_decay=0.0, **way), torchs(plain, weight_decay=0.0, **way)
    for optimizer in (one, other):
        trained(optimizer, range(5), None)
    before = copy.deepcopy((mine, [state["exp_avg_sq"] for state in one.state.values()]))
    trained(one, range(5, 6), 0.5)
    for param, twin in zip(mine, plain, strict=True):
        twin.grad = param.grad
    other.step()
    for param, twin, old, second in zip(mine, plain, *before, strict=True):
        come = arrived(one, param)
        torch.testing.assert_close(param[come], twin[come], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(param[~come] - old[~come], twin[~come] - old[~come], rtol=1e-3, atol=1e-7)
        torch.testing.assert_close(one.state[param]["exp_avg"], other.state[twin]["exp_avg"])
        same(one.state[param]["exp_avg_sq"][~come], second[~come])


@pairs
def test_after_a_step_of_everything_it_is_torchs_step_again(ours: Any, torchs: Any) -> None:
    """A plan that becomes dense: what waited arrives at its ages, and then nothing has an age."""
    mine = made()
    optimizer = ours(mine, lr=1e-2)
    trained(optimizer, range(20), 0.1)
    assert int(optimizer.state[mine[0]]["age"].max()) > 10 * STEP
    trained(optimizer, range(20, 21), None)
    assert all("age" not in one for one in optimizer.state.values())
    plain = copy.deepcopy(mine)
    other = torchs(plain, lr=1e-2)
    other.load_state_dict(saved(optimizer))
    for each in (optimizer, other):
        trained(each, range(21, 40), None)
    same(tuple(mine), tuple(plain))
    same(tuple(state_of(optimizer)), tuple(state_of(other)))


def saved(optimizer: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_training_resumes_exactly(way: dict[str, Any], dtype: torch.dtype) -> None:
    whole, first, second = made(dtype), made(dtype), made(dtype)
    straight = optim.AdamW(whole, **way)
    trained(straight, range(30), 0.2, ranks=7)
    before = optim.AdamW(first, **way)
    trained(before, range(17), 0.2, ranks=7)
    after = optim.AdamW(second, **way)
    after.load_state_dict(saved(before))
    assert after.state[second[0]]["age"].dtype == torch.int16
    with torch.no_grad():
        for param, old in zip(second, first, strict=True):
            param.copy_(old)
    trained(after, range(17, 30), 0.2, ranks=7)
    same(tuple(second), tuple(whole))
    same(tuple(state_of(after)), tuple(state_of(straight)))
    copied = copy.deepcopy(after)  # also what pickling keeps
    same(tuple(state_of(copied)), tuple(state_of(after)))
    trained(copied, range(30, 31), 0.2)


@pairs
def test_states_go_to_and_from_torchs_class(ours: Any, torchs: Any) -> None:
    mine, plain, back = made(), made(), made()
    aged, stock, again = ours(mine), torchs(plain), ours(back)
    trained(stock, range(9), None)
    aged.load_state_dict(saved(stock))
    with torch.no_grad():
        for param, old in zip(mine, plain, strict=True):
            param.copy_(old)
    same(tuple(state_of(aged)), tuple(state_of(stock)))
    trained(aged, range(9, 12), 0.5)
    stock.load_state_dict(saved(aged))  # its ages are of no use there, and it goes on as torch's
    age = stock.state[plain[0]]["age"]
    with torch.no_grad():
        for param, old in zip(plain, mine, strict=True):
            param.copy_(old)
    trained(stock, range(12, 15), None)
    same(age, aged.state[mine[0]]["age"].float())
    again.load_state_dict(saved(stock))
    broken = saved(aged)
    broken["state"][0]["age"].fill_(-3)
    again.load_state_dict(broken)
    assert again.state[back[0]]["age"].eq(STEP).all()


def test_a_sharded_model() -> None:
    """Supports are of a rank's own part; ages are sharded like the moments, and so saved."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        whole = nn.Linear(6, 4)
        sharded: Any = fully_shard(copy.deepcopy(whole), mesh=init_device_mesh("cpu", (1,)))
        one, other = (optim.AdamW(module.parameters()) for module in (sharded, whole))
        for optimizer in (one, other):
            for number in range(8):
                draw, supports = torch.Generator().manual_seed(number), {}
                for param in optimizer.param_groups[0]["params"]:
                    gradient = torch.randn(param.shape, generator=draw)
                    supports[param] = torch.rand(param.shape, generator=draw) < 0.4
                    param.grad = (
                        gradient if optimizer is other else DTensor.from_local(gradient, param.device_mesh)
                    )
                optimizer.arrived(supports)
                optimizer.step()
        again = optim.AdamW(sharded.parameters())
        set_optimizer_state_dict(sharded, again, get_optimizer_state_dict(sharded, one))
        for mine, theirs in zip(sharded.parameters(), whole.parameters(), strict=True):
            same(mine.to_local().detach(), theirs.detach())
            for optimizer in (one, again):
                same(optimizer.state[mine]["age"].to_local(), other.state[theirs]["age"])
    finally:
        torch.distributed.destroy_process_group()


def test_groups_have_their_own_settings() -> None:
    """Two groups as two optimizers, with a parameter that has a support, one that has none and one without gradient."""
    first, second = made(), made()
    settings: list[dict[str, Any]] = [
        {"lr": 1e-2, "betas": (0.5, 0.99), "weight_decay": 0.3},
        {"lr": torch.tensor(1e-3), "eps": 1e-4, "foreach": False},
    ]
    together = optim.AdamW([{"params": first[:2], **settings[0]}, {"params": first[2:], **settings[1]}])
    apart = [optim.AdamW(second[:2], **settings[0]), optim.AdamW(second[2:], **settings[1])]
    for number in range(12):
        draw = torch.Generator().manual_seed(number)
        gradients = [torch.randn(param.shape, generator=draw) for param in first]
        come = torch.rand(first[0].shape, generator=draw) < 0.3
        for params in (first, second):
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = gradient.clone()
            params[3].grad = None
        together.arrived(
            {first[0]: come, first[2]: torch.tensor([3, 1, 3], dtype=torch.int32), first[1]: None}
        )
        apart[0].arrived({second[0]: come})
        flat = torch.zeros(first[2].numel(), dtype=torch.bool)
        flat[[1, 3]] = True
        apart[1].arrived({second[2]: flat})
        for optimizer in (together, *apart):
            optimizer.step()
    same(tuple(first), tuple(second))
    assert [list(together.state[param]) for param in first] == [
        ["step", "exp_avg", "exp_avg_sq", "age"],
        ["step", "exp_avg", "exp_avg_sq"],
        ["step", "exp_avg", "exp_avg_sq", "age"],
        [],
    ]


def test_sixteen_bits_are_computed_in_float32_and_rounded_once() -> None:
    narrow, wide = made(torch.bfloat16), made(torch.bfloat16)
    wide = [nn.Parameter(param.detach().float()) for param in wide]
    one, other = optim.AdamW(narrow, lr=1e-2), optim.AdamW(wide, lr=1e-2)
    for number in range(30):
        trained(one, range(number, number + 1), 0.3)
        for param, twin in zip(narrow, wide, strict=True):
            twin.grad = param.grad.float()  # type: ignore[union-attr]
        other.arrived({twin: arrived(one, param) for param, twin in zip(narrow, wide, strict=True)})
        other.step()
        with torch.no_grad():  # as the narrow ones are stored
            for twin in wide:
                for key in ("exp_avg", "exp_avg_sq"):
                    other.state[twin][key].copy_(other.state[twin][key].bfloat16())
                twin.copy_(twin.bfloat16())
    same(tuple(param.detach().float() for param in narrow), tuple(twin.detach() for twin in wide))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_step_that_a_scaler_skips_changes_nothing(way: dict[str, Any]) -> None:
    """The scaler calls no step, or a fused one with ``found_inf``. Other steps are those without a scaler."""
    scaled, plain = made(), made()
    one, other = optim.AdamW(scaled, **way), optim.AdamW(plain, **way)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    for optimizer in (one, other):
        trained(optimizer, range(6), 0.3)
    for number in range(6, 12):
        draw = torch.Generator().manual_seed(number)
        overflow = number == 8
        supports, others = {}, {}
        for param, twin in zip(scaled, plain, strict=True):
            gradient, come = (
                torch.randn(param.shape, generator=draw),
                torch.rand(param.shape, generator=draw) < 0.3,
            )
            param.grad = gradient * come * float(scaler.get_scale())
            twin.grad = gradient * come
            supports[param], others[twin] = come, come
        if overflow:
            scaled[0].grad.view(-1)[5] = torch.inf  # type: ignore[union-attr]
        scaler.scale(torch.zeros(()))
        before = copy.deepcopy((scaled, state_of(one)))
        one.arrived(supports)
        scaler.step(one)
        scaler.update()
        if overflow:
            same((tuple(scaled), tuple(state_of(one))), (tuple(before[0]), tuple(before[1])))
        else:
            other.arrived(others)
            other.step()
    same((tuple(scaled), tuple(state_of(one))), (tuple(plain), tuple(state_of(other))))


def test_on_a_device_a_skipped_step_is_a_mask() -> None:
    """The fused step with ``found_inf``, where the host may not read it."""
    found = []
    for device in (False, True):
        params = made()
        optimizer = optim.AdamW(params, fused=True)
        for number in range(10):
            optimizer.found_inf = torch.tensor(float(number == 4))  # type: ignore[attr-defined]
            optimizer.grad_scale = torch.tensor(2.0)  # type: ignore[attr-defined]
            if device:
                masked(optimizer, number)
            else:
                trained(optimizer, range(number, number + 1), 0.4)
        found.append((tuple(params), tuple(state_of(optimizer))))
    same(found[1], found[0])


def masked(optimizer: Any, number: int) -> None:
    """A step as on a device: ``is_cpu`` is what the optimizer asks."""

    class Elsewhere(Tensor):
        is_cpu = False

    optimizer.found_inf = optimizer.found_inf.as_subclass(Elsewhere)
    with kernels.treated_as_device():
        trained(optimizer, range(number, number + 1), 0.4)


def scaled_by_hand(optimizer: Any, factors: dict[int, float], steps: int = 12) -> tuple[Element, float]:
    """Steps of one element that all ranks send in the third and the last; what waits is multiplied before some."""
    param = optimizer.param_groups[0]["params"][0]
    one, wait = Element(0.5, 1.0, 0.0, 1.0), 0.0
    for time in range(1, steps + 1):
        come = time in (3, steps)
        if time in factors:
            optimizer.scaled(factors[time], [param])
            wait = int(wait * STEP * factors[time] ** 2 + 0.5) / STEP
        optimizer.arrived({param: torch.tensor([come])})
        param.grad = torch.tensor([0.3 * time], dtype=torch.float64)
        optimizer.step()
        wait += 1.0
        one.step(time, 0.3 * time, wait, wait * come)
        wait *= not come
    return one, wait


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_waits_and_was_multiplied_counts_as_its_square(backend: Any) -> None:
    """The third element of a step arrives after 9 steps, 3 of which were multiplied by 0.5 and then by 4."""
    param = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    optimizer = optim.AdamW([param], lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.0)
    with on(backend):
        one, wait = scaled_by_hand(optimizer, {7: 0.5, 9: 4.0})
    state = optimizer.state[param]
    assert (param.item(), state["exp_avg_sq"].item()) == (pytest.approx(one.x), pytest.approx(one.v))
    assert "age" not in state or state["age"].tolist() == [(wait + 1) * STEP]


def test_a_factor_waits_for_the_next_step_of_its_parameter() -> None:
    """Through steps without its gradient, checkpoints, and factors in between; nothing waits of one without an age."""
    found = []
    for how in ("at once", "in between", "saved", "without a gradient"):
        params = made()
        optimizer = optim.AdamW(params)
        optimizer.scaled(5.0, params)
        trained(optimizer, range(9), 0.3)
        if how == "in between":
            optimizer.scaled(0.25, params)
            optimizer.scaled(2.0, params)
        else:
            optimizer.scaled(0.5, params)
        if how == "saved":
            own, old = made(), params
            again = optim.AdamW(own)
            again.load_state_dict(saved(optimizer))
            assert int(again.state[own[0]]["age"].max()) < 6 * STEP, "no longer to be multiplied"
            params, optimizer = own, again
            with torch.no_grad():
                for param, one in zip(params, old, strict=True):
                    param.copy_(one)
        if how == "without a gradient":
            for param in params:
                param.grad = None
            optimizer.step()
        trained(optimizer, range(9, 12), 0.3)
        found.append((tuple(params), tuple(state_of(optimizer))))
    for one in found[1:]:
        same(one, found[0])


@pytest.mark.parametrize("factor", [0.0, -1.0, torch.inf, torch.nan])
def test_a_factor_is_finite_and_above_zero(factor: float) -> None:
    params = made()
    with pytest.raises(ValueError, match="old learning rate / the new one"):
        optim.AdamW(params).scaled(factor, params)


def test_the_second_moment_is_right_under_warm_restarts() -> None:
    """Noise of size 1 that arrives every 16 steps, while the rate falls to a 30th and begins again: v stays near 1. It
    comes to 13 where what was multiplied counts as so many steps' worth as before."""
    n, draw = 400, torch.Generator().manual_seed(4)
    param = nn.Parameter(torch.zeros(n))
    optimizer = optim.AdamW([param], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    waiting, before, found = torch.zeros(n), 1e-3, []
    phases = torch.randint(16, (n,), generator=draw)
    for number in range(400):
        rate = 1e-3 * (1.0 - (29 / 30) * (number % 25) / 24)
        optimizer.param_groups[0]["lr"] = rate
        waiting *= before / rate
        if rate != before:
            optimizer.scaled(before / rate, [param])
        before = rate
        waiting += torch.randn(n, generator=draw)
        come = phases == number % 16
        optimizer.arrived({param: come})
        param.grad = waiting * come
        waiting *= ~come
        optimizer.step()
        if number > 100:
            found.append(float(optimizer.state[param]["exp_avg_sq"].mean()))
    assert min(found) > 0.6
    assert max(found) < 1.6


def test_supports_hold_for_one_step_and_replace_those_before() -> None:
    """After a skipped step, say. A closure may tell them; hooks of the optimizer run once."""
    (param,) = params = [nn.Parameter(torch.ones(4))]
    optimizer = optim.AdamW(params)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    param.grad = torch.ones(4)
    optimizer.arrived({param: torch.tensor([0])})
    optimizer.arrived({param: torch.tensor([1, 2])})

    def ages() -> list[int]:
        return list((optimizer.state[param]["age"] // STEP).tolist())

    optimizer.step()
    assert ages() == [2, 1, 1, 2]

    def closure() -> float:
        optimizer.arrived({param: torch.tensor([True, False, False, False])})
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert ages() == [1, 2, 2, 3]
    param.grad = None
    optimizer.arrived({param: torch.tensor([3])})
    optimizer.step()
    assert ages() == [1, 2, 2, 3]
    param.grad = torch.ones(4)
    optimizer.step()
    assert "age" not in optimizer.state[param]
    assert calls == ["before", "after"] * 4


def test_two_agents_may_tell_one_optimizer() -> None:
    """Each of its own module's parameters: what the other said stays."""
    first, second = params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = optim.AdamW(params)
    optimizer.arrived({first: torch.tensor([0])})
    optimizer.arrived({second: torch.tensor([1])})
    for one in params:
        one.grad = torch.ones(2)
    optimizer.step()
    assert [optimizer.state[one]["age"].tolist() for one in params] == [[STEP, 2 * STEP], [2 * STEP, STEP]]


def test_ages_end_at_the_largest() -> None:
    (param,) = params = [nn.Parameter(torch.ones(3))]
    optimizer = optim.AdamW(params)
    for _ in range(OLDEST // STEP + 9):
        param.grad = torch.ones(3)
        optimizer.arrived({param: torch.tensor([2])})
        optimizer.step()
    assert optimizer.state[param]["age"].tolist() == [OLDEST, OLDEST, STEP]


@pytest.mark.parametrize("setting", ["amsgrad", "capturable", "differentiable"])
def test_settings_without_a_step_by_age(setting: str) -> None:
    (param,) = params = [nn.Parameter(torch.ones(4))]
    kind: Any = optim.Adam
    optimizer = kind(params, **{setting: True})
    with pytest.raises(
        ValueError, match=f"{setting}=True: there is no step by age with it. Make the optimizer"
    ):
        optimizer.arrived({param: torch.tensor([0])})
    optimizer.arrived({param: None})
    late = optim.Adam(params)
    param.grad = torch.ones(4)
    late.arrived({param: torch.tensor([0])})
    late.param_groups[0][setting] = True
    with pytest.raises(ValueError, match=f"{setting}=True"):
        late.step()


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it does not trace
def test_a_compiled_step_takes_no_supports() -> None:
    """It would never look at them. Compiled after a step by age, it says so too."""
    (param,) = params = [nn.Parameter(torch.ones(4))]
    param.grad = torch.ones(4)
    optimizer, late = optim.AdamW(params, lr=torch.tensor(0.1)), optim.AdamW(params, lr=torch.tensor(0.1))
    torch.compile(optimizer.step, backend="eager")()
    with pytest.raises(ValueError, match=r"step\(\) is compiled"):
        optimizer.arrived({param: torch.tensor([0])})
    late.arrived({param: torch.tensor([0])})
    late.step()
    with pytest.raises(Exception, match=r"step\(\) is compiled"):
        torch.compile(late.step, backend="eager")()
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (torch.ones(3, dtype=torch.bool), r"a mask has shape \(3,\) and the parameter \(2, 2\): one bool is"),
        (torch.ones(3, dtype=torch.uint8), r"counts have shape \(3,\) and the parameter \(2, 2\): one uint8"),
        (torch.tensor([3, 0, 1, 2], dtype=torch.uint8), "ranks=2 with counts up to 3: ranks= must be"),
        (torch.tensor([0, 4]), r"positions reach from 0 to 4, outside 0\.\.3"),
        (torch.tensor([-1]), "positions reach from -1 to -1"),
        (torch.ones(4), r"a support is a tensor of torch.float32: give a mask \(bool\), positions"),
        (torch.ones(4, dtype=torch.bool, device="meta"), "a support is on meta and its parameter on cpu"),
    ],
)
def test_a_support_that_does_not_fit(support: Tensor, message: str) -> None:
    param = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match=message):
        optim.AdamW([param]).arrived({param: support}, 2)


def test_other_misuse() -> None:
    with pytest.raises(ValueError, match=r"a tensor of shape \(5,\) that is no parameter of this optimizer"):
        optim.AdamW([nn.Parameter(torch.ones(2))]).arrived({torch.ones(5): None})
    param = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"torch\.complex64: there is no step by age for complex numbers"):
        optim.AdamW([param]).arrived({param: torch.tensor([0])})
    with pytest.raises(ValueError, match="Invalid learning rate"):
        optim.AdamW([param], lr=-1.0)
    param = nn.Parameter(torch.ones(2))
    with pytest.raises(
        ValueError, match=r"nonzero=True before a parameter of shape \(2,\) has a gradient: call"
    ):
        optim.AdamW([param]).arrived({param: torch.empty(0, dtype=torch.uint8)}, nonzero=True)
    param.grad = torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="ranks=0 with counts up to 0: ranks= must be"):
        optim.AdamW([param]).arrived({param: torch.zeros(2, dtype=torch.uint8)}, 0, nonzero=True)
    with pytest.raises(ValueError, match=r"a support is a tensor of torch\.float32: give a mask"):
        optim.AdamW([param]).arrived({param: torch.empty(0)}, nonzero=True)


def pickled(optimizer: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_a_copy_of_an_adopted_optimizer_is_torchs(kind: Any, copied: Any) -> None:
    """It was of a class of gravac for ever: nothing undoes what was done to another optimizer."""
    weight = nn.Parameter(torch.ones(8))
    optimizer = kind([weight], lr=0.1)
    undo = adopt(optimizer)
    weight.grad = torch.ones(8)
    optimizer.step()
    other = copied(optimizer)
    assert type(other) is kind
    assert vars(other).keys() == vars(copied(kind([weight]))).keys()
    assert type(optimizer) is PLAIN[kind], "the original stays adopted"
    for one in (other, optimizer):
        (param,) = one.param_groups[0]["params"]
        param.grad = torch.ones(8)
        one.step()
        assert float(one.state[param]["step"]) >= 2.0
    undo_other = adopt(other)
    assert type(other) is PLAIN[kind]
    undo_other()
    undo()
    assert type(optimizer) is type(other) is type(copied(optimizer)) is kind
    own = PLAIN[kind]([weight])
    assert type(copied(own)) is type(own), "one that the user made"
