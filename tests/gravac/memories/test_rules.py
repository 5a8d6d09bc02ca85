"""What happens to the residual when something else changes: learning rate, loss scale, clipping, micro-steps."""

import pytest
import torch
from torch import Tensor

from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, Memory, build

N = 400
BUCKET = Bucket(0, ("x",), (N,))
CODEC = build_codec("topk")


def gradient(number: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(number))


def send(memory: Memory, value: Tensor, number: int, keep: bool = True) -> Tensor:
    p = memory.open(BUCKET).compensate(value)
    payload = CODEC.compress(p, 10.0, Key(0, number, 0, 0), torch.float32)
    memory.open(BUCKET).update(CODEC, payload)
    memory.commit() if keep else memory.rollback()
    return CODEC.decode(payload)


@pytest.mark.parametrize("text", ["residual", "partial:beta=0.5", "conef-sketch:size=0.4"])
def test_rescaled_outside_feedback_equals_inside_feedback(text: str) -> None:
    """p = ηg + e, x -= Δ against p = g + e, x -= ηΔ with e multiplied by η/η' whenever the rate changes."""

    def run(inside: bool, rescaled: bool) -> Tensor:
        memory, x, before = build(text), torch.zeros(N), 0.1
        for number in range(60):
            rate = 0.1 if number < 20 else 0.1 * 0.93 ** (number - 20)  # constant, then falling every step
            if inside:
                x -= send(memory, rate * gradient(number), number)
                continue
            if rescaled and rate != before:
                memory.rescale(before / rate)
            before = rate
            x -= rate * send(memory, gradient(number), number)
        return x

    inside = run(True, False)
    torch.testing.assert_close(run(False, True), inside, rtol=1e-4, atol=1e-5)
    assert float((run(False, False) - inside).abs().max()) > 1e-2  # so the rule is needed


@pytest.mark.parametrize(
    "text",
    ["residual", "partial", "conef", "conef:bits=4", "conef-sketch", "iconef-v1", "iconef-v2", "momentum"],
)
def test_a_loss_scale_that_changes_and_overflows_changes_nothing(text: str) -> None:
    """Loss-scaled gradients, the scale halved at overflows and doubled in between: bit for bit the unscaled run."""
    plain, scaled, scale = build(text), build(text), 1024.0
    for number in range(12):
        if number in (3, 7):  # this step overflows: skipped, and the scale is halved
            overflown = gradient(number)
            overflown[5] = torch.inf
            assert not scaled.open(BUCKET).compensate(overflown).isfinite().all()
            scaled.rollback()
            scaled.rescale(0.5)
            scale *= 0.5
        elif number == 9:
            scaled.rescale(2.0)
            scale *= 2.0
        expected = send(plain, gradient(number), number)
        assert torch.equal(send(scaled, scale * gradient(number), number) / scale, expected)


def test_clip_before_adding_the_residual() -> None:
    """The other order loses what it cuts off: then sent + residual is no longer what came in."""

    def clip(x: Tensor) -> Tensor:
        return x * min(1.0, 5.0 / float(x.norm()))

    memory, came, went = build("residual"), torch.zeros(N), torch.zeros(N)
    for number in range(20):
        came += clip(gradient(number))
        went += send(memory, clip(gradient(number)), number)
    residual = memory.state_dict()["x"]
    torch.testing.assert_close(went + residual, came, rtol=1e-5, atol=1e-5)
    assert float(residual.norm()) > 5.0  # clipping p would have cut most of this off


@pytest.mark.parametrize("text", ["residual", "conef", "conef-sketch", "momentum"])
def test_accumulated_micro_steps_are_one_step(text: str) -> None:
    """The memory takes part once, in the step that synchronizes, with the summed gradient. Adding the residual in
    each micro-step would count it several times."""
    memory = build(text)
    send(memory, gradient(0), 0)
    residual = memory.open(BUCKET).compensate(torch.zeros(N)).clone()
    memory.rollback()
    total = sum((gradient(number) for number in (1, 2, 3)), torch.zeros(N))
    torch.testing.assert_close(memory.open(BUCKET).compensate(total), total + residual)


@pytest.mark.parametrize("text", ["residual", "partial", "conef", "conef-sketch", "iconef-v2"])
def test_codec_and_cf_may_change_between_steps(text: str) -> None:
    """A residual does not depend on the codec that left it out."""
    memory, net = build(text), torch.zeros(N)
    for number, (name, cf) in enumerate(
        [("topk", 10.0), ("randomk", 3.0), ("int8", 1.0), ("blockrandomk", 50.0)] * 5
    ):
        codec = build_codec(name)
        p = memory.open(BUCKET).compensate(gradient(number))
        payload = codec.compress(p, cf, Key(0, number, 0, 0), torch.float32)
        net += gradient(number) - codec.decode(payload)
        memory.open(BUCKET).update(codec, payload)
        memory.commit()
    residual = memory.open(BUCKET).compensate(torch.zeros(N), dense=True)
    if memory.exact:
        torch.testing.assert_close(residual, net, rtol=1e-4, atol=1e-4)
    elif text == "conef-sketch":  # the same sketch, not the same residual
        fresh = build(text)
        fresh.load_state_dict({"x": net})
        torch.testing.assert_close(
            residual, fresh.open(BUCKET).compensate(torch.zeros(N), dense=True), rtol=1e-4, atol=1e-4
        )
    else:  # twenty roundings, each of 0.4 % energy at most
        assert float((residual - net).norm()) < 0.1 * float(net.norm())
