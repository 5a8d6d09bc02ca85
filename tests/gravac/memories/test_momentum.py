"""Momentum correction and clipping: DGC's memory, and what docs/memories.md says of where to clip."""

import math

import pytest
import torch
from torch import Tensor

from gravac.compressors import Compressor, Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, Memory, build, convert, reshard, stability
from tests.support.maths.clipping_task import train as train_clipped
from tests.support.maths.dgc_task import ramp, train

N = 40
BUCKET = Bucket(0, ("x", "y"), (30, 10))
KEY = Key(0, 0, 0, 0)


def gradient(number: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(number))


def send(memory: Memory, g: Tensor, number: int, cf: float = 8.0, codec: Compressor | None = None) -> Tensor:
    codec = codec or build_codec("topk")
    p = memory.open(BUCKET).compensate(g, dense=cf == 1.0)
    payload = None if cf == 1.0 else codec.compress(p, cf, Key(0, number, 0, 0), torch.float32)
    sent = p.clone() if payload is None else codec.decode(payload)
    memory.open(BUCKET).update(codec, payload)
    memory.commit()
    return sent


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
def test_against_the_rules_element_by_element(nesterov: bool, masking: bool) -> None:
    """In Python floats: u = m u + g, v += u (Nesterov: u = m (u + g), v += u + g), the 5 largest |v| leave; there
    v = 0, and u = 0 if masked."""
    text = f"momentum:momentum=0.7,nesterov={str(nesterov).lower()},masking={str(masking).lower()}"
    memory, u, v = build(text), [0.0] * N, [0.0] * N
    for number in range(12):
        g = gradient(number)
        sent = send(memory, g, number)
        for i, one in enumerate(g.tolist()):
            u[i] = 0.7 * (u[i] + one) if nesterov else 0.7 * u[i] + one
            v[i] += u[i] + one if nesterov else u[i]
        largest = sorted(range(N), key=lambda i: -abs(v[i]))[:5]
        assert sorted(largest) == sent.nonzero().flatten().tolist()
        for i in largest:
            assert float(sent[i]) == pytest.approx(v[i], rel=1e-5, abs=1e-5)
            v[i], u[i] = 0.0, 0.0 if masking else u[i]
    state = memory.state_dict()
    assert state.keys() == {"x", "y", "::velocity/x", "::velocity/y"}
    assert torch.cat([state["x"], state["y"]]).tolist() == pytest.approx(v, rel=1e-4, abs=1e-5)
    assert torch.cat([state["::velocity/x"], state["::velocity/y"]]).tolist() == pytest.approx(
        u, rel=1e-4, abs=1e-5
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_never_compressed_it_is_sgd_with_momentum_whatever_the_learning_rate_does(nesterov: bool) -> None:
    memory = build(f"momentum:nesterov={str(nesterov).lower()}")
    ours, theirs = torch.zeros(N, requires_grad=True), torch.zeros(N, requires_grad=True)
    plain = torch.optim.SGD([ours], lr=0.1)
    reference = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, nesterov=nesterov)
    for number in range(60):
        rate = 0.1 if number < 30 else 0.01
        if number == 30:
            memory.change_rate(0.1 / rate)
        for optimizer in (plain, reference):
            optimizer.param_groups[0]["lr"] = rate
        g = gradient(number)
        ours.grad, theirs.grad = send(memory, g, number, cf=1.0), g
        plain.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not memory.open(BUCKET).has_residual
    assert memory.transforms  # so these steps must not be skipped


def test_a_new_rate_and_a_new_loss_scale_are_different_things() -> None:
    rate, scale = build("momentum"), build("momentum")
    for memory in (rate, scale):
        for number in range(3):
            send(memory, gradient(number), number)
    before = rate.state_dict()
    rate.change_rate(4.0, names=("x",))
    scale.rescale(4.0, names=("x",))
    for name, value in before.items():
        assert torch.equal(rate.state_dict()[name], value * (4.0 if name == "x" else 1.0))
        assert torch.equal(scale.state_dict()[name], value * (4.0 if name.endswith("x") else 1.0))
    loaded = build("momentum")
    loaded.load_state_dict(before)  # between loading and the first step too
    loaded.change_rate(4.0, names=("x",))
    assert all(torch.equal(value, rate.state_dict()[name]) for name, value in loaded.state_dict().items())
    with pytest.raises(ValueError, match="must be above 0 and finite"):
        rate.change_rate(0.0)


@pytest.mark.parametrize("codec", ["terngrad", "qsgd:bits=2", "bernoulli", "topk+int8", "countsketch", "dgc"])
def test_the_mask_is_where_something_was_sent_whatever_the_codec(codec: str) -> None:
    memory = build("momentum")
    for number in range(3):
        sent = send(memory, gradient(number), number, cf=4.0, codec=build_codec(codec))
    u = torch.cat([memory.state_dict()[f"::velocity/{name}"] for name in BUCKET.names])
    assert torch.equal(u == 0, sent != 0)
    assert 0 < int((u == 0).sum()) < N or codec == "countsketch"


def test_a_step_that_sent_nothing_masks_nothing() -> None:
    """What the agent does when compressing failed: a payload that decodes to zeros."""
    memory, codec = build("momentum"), build_codec("topk")
    blank = codec.blank(N, 8.0, KEY, torch.float32, torch.device("cpu"), 0.0)
    p = memory.open(BUCKET).compensate(gradient(0)).clone()
    memory.open(BUCKET).update(codec, blank)
    memory.commit()
    state = memory.state_dict()
    for key in ("", "::velocity/"):
        assert torch.equal(torch.cat([state[key + "x"], state[key + "y"]]), p)


@pytest.mark.parametrize("ranks", [1, 4])
def test_gradients_are_clipped_by_parameter_before_they_are_added_up(ranks: int) -> None:
    memory, limit = build("momentum:clip=2.0,masking=false"), 2.0 / math.sqrt(ranks)
    memory.world_size = ranks
    u = v = torch.zeros(N)
    for number in range(5):
        g = gradient(number)
        g[30:] *= 0.01  # of y: far below the limit
        assert float(g[:30].norm()) > limit > float(g[30:].norm())
        clipped = torch.cat([g[:30] * (limit / g[:30].norm()), g[30:]])
        sent = send(memory, g, number)
        u = 0.9 * u + clipped
        v = v + u - sent
    assert float(v.norm()) > 2 * limit  # the residual is not clipped
    state = memory.state_dict()
    torch.testing.assert_close(torch.cat([state["x"], state["y"]]), v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e25])
def test_clipping_survives_any_finite_gradient(size: float) -> None:
    """Squares of 1e25 leave float32: taken there, the norm would be infinite and the gradient gone."""
    p = build("momentum:clip=2.0").open(BUCKET).compensate(torch.full((N,), size))
    assert float(p[:30].norm()) == pytest.approx(min(2.0, size * math.sqrt(30)), rel=1e-5)


def test_momentum_that_alone_overflows_is_dropped() -> None:
    """Else the same step would be non-finite for ever: m u + v leaves float32, whatever the gradient."""
    memory = build("momentum:momentum=0.99")
    memory.load_state_dict({"x": torch.full((30,), 9e36), "::velocity/x": torch.full((30,), 3.4e38)})
    assert not memory.open(BUCKET).compensate(torch.zeros(N)).isfinite().all()
    memory.rollback()
    assert memory.dropped == 1
    assert memory.open(BUCKET).compensate(gradient(0)).isfinite().all()


def test_momentum_goes_where_residuals_go() -> None:
    ranks = [build("momentum") for _ in range(3)]
    for number, memory in enumerate(ranks):
        send(memory, gradient(number), number)
    state = reshard([memory.state_dict() for memory in ranks])
    for name in ("x", "::velocity/y"):
        mean = sum((memory.state_dict()[name].double() for memory in ranks), torch.tensor(0.0)) / 3
        torch.testing.assert_close(state[name].double(), mean, rtol=1e-6, atol=1e-7)
    one = ranks[0]
    assert one.nbytes() == 4 * 4 * N
    residual = convert(one, build("residual"))
    assert residual.state_dict().keys() == {"x", "y"}
    assert convert(residual, build("momentum")).state_dict().keys() == {"x", "y"}
    send(one, gradient(5), 5, cf=1.0)
    assert one.state_dict().keys() == {"::velocity/x", "::velocity/y"}
    assert convert(one, build("none")).state_dict() == {}  # momentum is no residual
    with pytest.raises(ValueError, match="residual of '::velocity/x' must be a 1-D float tensor"):
        one.load_state_dict({"::velocity/x": torch.zeros(2, 2)})
    one.load_state_dict({"::velocity/x": torch.zeros(3)})
    with pytest.raises(ValueError, match="residual of 'x' has 3 elements, its gradient 30"):
        one.open(BUCKET).compensate(gradient(0))


def test_settings() -> None:
    assert build("momentum:masking=false,clip=0.5").spec == "momentum:masking=false,clip=0.5"
    assert build(build("momentum:nesterov=true").spec).settings.nesterov is True
    assert build("momentum:clip=null").settings.clip is None
    assert build("momentum:momentum=0.75").amplification == 4.0
    assert build("residual").amplification == 1.0
    assert stability(build("momentum"), build_codec("topk"), 100.0) is None
    for wrong, complaint in {
        "momentum=1": "setting momentum: must be below 1",
        "clip=0": "setting clip: must be above 0",
        "masking=1": "setting masking: .*boolean",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            build(f"momentum:{wrong}")


@pytest.mark.long
def test_the_whole_of_dgc_trains_better_at_1000x_than_residuals_with_the_optimizers_momentum() -> None:
    """Cross-entropy of two seeds: 0.85 and 0.95 against 1.41 and 1.22. After 400 steps 0.70 and 0.71 against 0.93 and
    0.97; with the same warm-up, but momentum after averaging, 0.95 and 0.92."""
    whole = [train("momentum:clip=2.0", 0.0, ramp(20), seed) for seed in (0, 1)]
    plain = [train("residual", 0.9, lambda step: 1000.0, seed) for seed in (0, 1)]
    assert sum(whole) < 0.85 * sum(plain)


def test_clipping_after_the_exchange_loses_exactly_what_is_cut_off() -> None:
    """applied + residual = in - cut: no later step brings it back."""
    out = train_clipped("after", 0.2, 100.0, seed=0, steps=60)
    assert out.clipped_steps > 0.5
    torch.testing.assert_close(out.applied + out.residual, out.came - out.cut, rtol=0.0, atol=1e-4)
    assert float(out.cut.norm()) > 0.2 * float(out.came.norm())


def test_clipping_before_the_memory_loses_nothing_of_the_clipped_gradients() -> None:
    """What enters is smaller; all of it is applied or in the residual."""
    out = train_clipped("before", 0.2, 100.0, seed=0, steps=60)
    assert out.clipped_steps > 0.5
    torch.testing.assert_close(out.applied + out.residual, out.came - out.cut, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("cf", [1.0, 100.0])
def test_without_clipping_nothing_is_cut(cf: float) -> None:
    out = train_clipped("none", 0.2, cf, seed=0, steps=30)
    torch.testing.assert_close(out.applied + out.residual, out.came, rtol=0.0, atol=1e-4)
    assert not out.cut.any()
