"""What every codec promises, as functions that raise AssertionError.

The suite runs them over the registry; the tests of the suite itself run them on members that violate one.
"""

import math

import pytest
import torch
from torch import Tensor

from gravac.compressors import Key, Payload
from gravac.compressors.base import Compressor

KEY = Key(seed=5, step=17, bucket=2, rank=1)
LECTURE = torch.tensor([3.0, -2, 130, 7, -9, 56, -25, 23])
"""v± of the lecture: l1 = 255, squared l2 = 21333, linf = 130."""
ENERGY = 21333.0
COPIES = 20_000
TILED = LECTURE.repeat(COPIES)
"""Independent draws of the lecture vector in one call, for blocks of 8."""
KINDS = ("gauss", "heavy", "student", "zero", "one_hot", "constant", "tiny")
EPS = 2.0**-23


def sent(codec: Compressor, x: Tensor, cf: float = 1.0, key: Key = KEY) -> Tensor:
    """What arrives of ``x``, in float64."""
    return codec.decode(codec.compress(x, cf, key, torch.float32)).double()


def error(codec: Compressor, x: Tensor, cf: float = 1.0) -> float:
    return float((sent(codec, x, cf) - x.double()).square().sum())


def gain(codec: Compressor, x: Tensor, cf: float = 1.0) -> float:
    return float(sent(codec, x, cf).square().sum() / x.double().square().sum())


def vector(kind: str, n: int, seed: int = 0) -> Tensor:
    """A float32 test vector of shape ``(n,)``."""
    generator = torch.Generator().manual_seed(seed)
    gauss = torch.randn(n, generator=generator)
    return {
        "gauss": gauss,
        "heavy": gauss / torch.rand(n, generator=generator).clamp_min(1e-3),
        "student": gauss / torch.randn(3, n, generator=generator).square().mean(0).sqrt(),
        "zero": torch.zeros(n),
        "one_hot": torch.nn.functional.one_hot(torch.tensor(n // 2), n).float() * -3.0,
        "constant": torch.full((n,), 0.25),
        "tiny": gauss * 1e-30,
    }[kind]


def residual_after(codec: Compressor, payload: Payload, x: Tensor) -> Tensor:
    residual = x.clone()
    codec.remove(payload, residual)
    return residual


def draws(codec: Compressor, x: Tensor, cf: float, count: int) -> Tensor:
    """Decoded draws under ``count`` different keys, float64, shape ``(count, n)``."""
    keys = (KEY._replace(step=step) for step in range(count))
    return torch.stack([codec.decode(codec.compress(x, cf, key, torch.float32)) for key in keys]).double()


def achieved(payload: Payload) -> float:
    """The CF of a payload: elements in / elements sent, or dense bytes / payload bytes of other codecs."""
    sent, whole = (payload.nbytes, 4) if payload.support is None else (payload.support.numel(), 1)
    return whole * payload.numel / sent


def check_bytes(codec: Compressor, x: Tensor, cf: float, dtype: torch.dtype) -> None:
    """The bytes handed over are those declared, part by part."""
    n, payload = x.numel(), codec.compress(x, cf, KEY, dtype)
    specs = codec.specs(n, cf, dtype)
    assert (specs is not None) == codec.traits.fixed_size
    assert payload.pack().numel() == payload.nbytes
    assert payload.nbytes == codec.wire_bytes(n, cf, dtype) or not codec.traits.fixed_size
    declared = specs or codec.specs_of(payload.nbytes, n, cf, dtype)
    assert [(p.dtype, p.numel()) for p in payload.parts] == [(p.dtype, p.numel) for p in declared]
    if codec.traits.fixed_size and dtype == torch.float32:
        assert achieved(payload) == codec.reached(n, cf)
    assert payload.numel == n
    assert payload.cf == cf


def check_expected_bytes(codec: Compressor, n: int = 4096, cf: float = 16.0) -> None:
    """On normal data a variable size is about what it is said to be."""
    sizes = [
        codec.compress(vector("gauss", n, step), cf, KEY._replace(step=step), torch.float32).nbytes
        for step in range(20)
    ]
    mean = sum(sizes) / len(sizes)
    assert 0.5 <= mean / codec.wire_bytes(n, cf, torch.float32) <= 2.0


def check_conservation(codec: Compressor, x: Tensor, cf: float, dtype: torch.dtype) -> None:
    """Sent + residual = in: exactly where elements are sent as they are, else to float32 rounding."""
    payload = codec.compress(x, cf, KEY, dtype)
    sent, residual = codec.decode(payload), residual_after(codec, payload, x)
    if codec.traits.selector and codec.traits.projection and dtype == torch.float32:
        assert torch.equal(sent + residual, x)
        return
    error = (sent.double() + residual.double() - x.double()).abs()
    assert bool((error <= EPS * (sent.double().abs() + x.double().abs())).all())


def check_travel(
    codec: Compressor, x: Tensor, cf: float, dtype: torch.dtype, front: int, other: Compressor
) -> None:
    """Packed on one rank, it decodes to the same bits on another; a wrong size is refused."""
    payload = codec.compress(x, cf, KEY, dtype)
    wire = torch.cat([torch.zeros(front, dtype=torch.uint8), payload.pack()])[front:]  # any alignment
    again = other.layout(x.numel(), cf, dtype).unpack(wire, KEY)
    assert torch.equal(other.decode(again), codec.decode(payload))
    if codec.traits.fixed_size:
        with pytest.raises(ValueError, match="bytes"):
            other.layout(x.numel(), cf, dtype).unpack(torch.cat([wire, wire.new_zeros(1)]), KEY)


def check_determinism(codec: Compressor, x: Tensor, cf: float) -> None:
    """The same key gives the same payload; compressing changes nothing."""
    before = x.clone()
    one, two = (codec.compress(x, cf, KEY, torch.float32).pack() for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(x, before)


def check_energies(codec: Compressor, x: Tensor, cf: float) -> None:
    """energy, inner and kept_energy are those of the decoded tensor; gain = alignment for projections."""
    payload = codec.compress(x, cf, KEY, torch.float32)
    sent, wide = codec.decode(payload).double(), x.double()
    energy, inner, whole = float(sent @ sent), float(sent @ wide), float(wide @ wide)
    rounding = 1e-5 * (energy + whole)
    assert math.isclose(codec.energy(payload), energy, rel_tol=1e-4)
    assert math.isclose(codec.inner(payload, x), inner, rel_tol=1e-4, abs_tol=rounding)
    kept = codec.kept_energy(payload, x)
    assert 0.0 <= kept <= whole + rounding
    assert math.isclose(kept, inner**2 / energy if energy else 0.0, rel_tol=1e-3, abs_tol=rounding)
    if codec.traits.projection:
        assert math.isclose(inner, energy, rel_tol=1e-4, abs_tol=rounding)
    if codec.traits.selector and codec.traits.projection:
        assert bool(((sent == 0) | (sent == wide)).all())


def check_homogeneous(codec: Compressor, x: Tensor, cf: float) -> None:
    """C(8x) = 8·C(x)."""
    one, eight = (codec.decode(codec.compress(a, cf, KEY, torch.float32)) for a in (x, 8 * x))
    torch.testing.assert_close(eight, 8 * one, rtol=1e-4, atol=1e-5 * float(eight.abs().max()))


def check_linear(codec: Compressor, x: Tensor, y: Tensor, cf: float) -> None:
    """Payloads of two ranks may be summed on the wire."""
    one = codec.compress(x, cf, KEY, torch.float32)
    two = codec.compress(y, cf, KEY._replace(rank=0), torch.float32)
    assert len(one.parts) == 1
    summed = codec.rebuild((one.values + two.values,), x.numel(), cf, KEY)
    expected = codec.decode(one) + codec.decode(two)
    tolerance = 4 * EPS * float((codec.decode(one).abs() + codec.decode(two).abs()).max())
    torch.testing.assert_close(codec.decode(summed), expected, rtol=1e-5, atol=tolerance)


def check_nested(codec: Compressor, x: Tensor, weak: float, strong: float) -> None:
    """X2 from X1 = X2 from X (multi-level compression): the same bits for selectors."""
    direct = codec.compress(x, strong, KEY, torch.float32)
    nested = codec.narrow(codec.compress(x, weak, KEY, torch.float32), strong)
    assert nested.cf == strong
    if codec.traits.selector:
        assert torch.equal(nested.pack(), direct.pack())
        return
    assert nested.nbytes == direct.nbytes
    one, two = codec.energy(nested), codec.energy(direct)  # equal singular values may come in another order
    assert math.isclose(one, two, rel_tol=1e-4)


def check_blank(codec: Compressor, n: int, cf: float, dtype: torch.dtype) -> None:
    """Zeros decode to zeros and NaN to something non-finite, in a payload any rank can read."""
    for value in (0.0, math.nan):
        payload = codec.blank(n, cf, KEY, dtype, torch.device("cpu"), value)
        if codec.traits.fixed_size or codec.traits.linear:
            assert payload.nbytes == codec.compress(vector("gauss", n), cf, KEY, dtype).nbytes
        again = codec.layout(n, cf, dtype).unpack(payload.pack(), KEY)
        sent = codec.decode(again)
        assert bool((sent == 0).all()) if value == 0.0 else not bool(sent.isfinite().all())


def check_nonfinite(codec: Compressor, x: Tensor, cf: float, bad: float) -> None:
    """A NaN or infinity is sent or left in the residual, in a payload of the declared size that any rank can read."""
    x = x.clone()
    x[x.numel() // 3] = bad
    before = x.clone()
    payload = codec.compress(x, cf, KEY, torch.float32)
    assert torch.equal(x.view(torch.int32), before.view(torch.int32)), "the input was changed"
    if codec.traits.fixed_size:
        assert payload.nbytes == codec.wire_bytes(x.numel(), cf, torch.float32)
    arrived = codec.layout(x.numel(), cf, torch.float32).unpack(payload.pack(), KEY)
    for one in (payload, arrived):
        sent, residual = codec.decode(one), residual_after(codec, one, x)
        assert not bool(sent.isfinite().all()) or not bool(residual.isfinite().all())


def check_dtypes(codec: Compressor, x: Tensor, cf: float, dtype: torch.dtype) -> None:
    """Any floating input, any stride, any floating output."""
    n = x.numel()
    narrow = x.to(dtype)
    check_bytes(codec, narrow, cf, dtype)
    strided = torch.stack((narrow, narrow + 1), 1)[:, 0]
    assert n == 1 or not strided.is_contiguous()
    sent = codec.decode(codec.compress(narrow, cf, KEY, dtype))
    assert torch.equal(codec.decode(codec.compress(strided, cf, KEY, dtype)), sent)
    assert sent.dtype == torch.float32
    assert bool(sent.isfinite().all())
    out = torch.ones(n, dtype=dtype)
    codec.decompress(codec.compress(narrow, cf, KEY, dtype), out, 0.5)
    precision = torch.finfo(dtype).eps
    torch.testing.assert_close(out.float(), 1 + 0.5 * sent, rtol=4 * precision, atol=4 * precision)


def check_bound(codec: Compressor, x: Tensor, cf: float, count: int = 100) -> None:
    """The mean squared error is at most what is said to be proven (5 standard errors of slack for random codecs)."""
    energy = float(x.double() @ x.double())
    limit = codec.bound(x.numel(), cf).limit(energy)
    if limit is None:
        return
    one, two = draws(codec, vector("gauss", x.numel()), cf, 2)
    if torch.equal(one, two):  # nothing random
        error = float((draws(codec, x, cf, 1) - x.double()).square().sum())
        assert error <= limit + 1e-6 * energy
        return
    errors = (draws(codec, x, cf, count) - x.double()).square().sum(1)
    # Rare events may have been missed altogether: hence the second term.
    slack = 5 * float(errors.std()) / math.sqrt(count) + 5 * energy / count
    assert float(errors.mean()) <= limit + slack


def check_unbiased(codec: Compressor, x: Tensor, cf: float, count: int = 1000) -> None:
    """No coordinate's mean is 4.5 standard errors off. (The smallest bias of test_codec_violations is 11 at 1000.)"""
    sent = draws(codec, x, cf, count)
    off, error = (sent.mean(0) - x.double()).abs(), sent.std(0) / math.sqrt(count)
    rounding = 1e-5 * float(x.abs().max())
    assert float(((off - rounding) / error.clamp_min(1e-300)).max()) < 4.5


def check_ladder(codec: Compressor, n: int = 10_000) -> None:
    """A stronger CF never gives a weaker one, and what is reached is what the bytes say."""
    cfs = (1.0, 1.5, 4.0, 10.0, 40.0, 160.0, 1000.0)
    reached = [codec.reached(n, cf) for cf in cfs]
    sizes = [codec.wire_bytes(n, cf, torch.float32) for cf in cfs]
    assert reached == sorted(reached)
    assert sizes == sorted(sizes, reverse=True)
    assert reached[0] >= 0.98 or not codec.traits.homogeneous  # never much more than dense


def check_state(codec: Compressor, other: Compressor, x: Tensor, cf: float) -> None:
    """State goes through plain tensors; a step taken back leaves none."""

    def learn(step: int) -> None:
        codec.observe(x * (step + 1), (cf,))
        codec.compress(x * (step + 1), cf, KEY._replace(step=step), torch.float32)
        codec.apply_mean_statistics(codec.local_statistics())

    for step in range(4):
        learn(step)
        before = codec.state_dict()
        codec.rollback()
        assert all(torch.equal(value, before[name]) for name, value in codec.state_dict().items())
        learn(step)
        codec.commit()
    state = codec.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    other.load_state_dict(state)
    one, two = (each.compress(x * 3, cf, KEY, torch.float32) for each in (codec, other))
    assert torch.equal(one.pack(), two.pack())
