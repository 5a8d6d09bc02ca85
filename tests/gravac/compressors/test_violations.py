"""Codecs that violate a property are caught, each by the check for it. So are known bugs of public code."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gravac import compressors
from gravac.compressors import COMPRESSORS, Bound, Compressor, Key, Payload, RandomK, TensorSpec, TopK
from gravac.compressors.base import kept_count
from gravac.compressors.lowrank.atomo import Atomo
from gravac.compressors.quantize.natural import Natural
from gravac.compressors.quantize.qsgd import QSGD
from gravac.compressors.quantize.quantizer import ROUNDED
from gravac.compressors.quantize.sign import ScaledSign
from gravac.compressors.sparse.randomk import UnbiasedBlockRandomK, UnbiasedRandomK
from gravac.kernels import noise, pack, relative, row_scales
from tests.support.maths import checks
from tests.support.maths.checks import LECTURE, vector


class WrongBound(RandomK):
    """Claims Top-k's share of ten times as many elements."""

    name = "wrong-bound"

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=min(1.0, 10 * kept_count(numel, cf) / numel))


class Biased(QSGD):
    """Rounds up when the draw is *above* the fraction, as a public implementation does."""

    name = "wrong-bias"

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        rows = x.float().view(1, -1)
        scales = row_scales(rows, self.norm)
        steps = (1 << (self.width(cf) - 1)) - 1
        a = (relative(rows, scales) * steps).flatten()
        up = noise(a.numel(), key.own_seed(), x.device) > a - a.floor()
        return Payload(
            (scales, pack((a.floor() + up).clamp(max=steps) + steps, self.width(cf))),
            None,
            x.numel(),
            cf,
            key,
        )


class WrongBytes(TopK):
    """Counts its values and forgets the positions."""

    name = "wrong-bytes"

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return (TensorSpec(dtype, kept_count(numel, cf)),)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return dtype.itemsize * kept_count(numel, cf)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Compressor]], str]:
    """Registers a member for one test, as CONTRIBUTING says, and gives the name it is built by."""

    def registered(codec: type[Compressor]) -> str:
        monkeypatch.setitem(COMPRESSORS, codec.name, codec)
        return codec.name

    return registered


def test_a_wrong_bound_is_caught(register: Callable[[type[Compressor]], str]) -> None:
    name = register(WrongBound)
    with pytest.raises(AssertionError):
        checks.check_bound(compressors.build(name), vector("gauss", 120), 10.0)
    checks.check_bound(compressors.build("randomk"), vector("gauss", 120), 10.0)
    checks.check_bytes(compressors.build(name), vector("gauss", 120), 10.0, torch.float32)


def test_a_bias_is_caught(register: Callable[[type[Compressor]], str]) -> None:
    name = register(Biased)
    with pytest.raises(AssertionError):
        checks.check_unbiased(compressors.build(name), LECTURE, 4.0)
    checks.check_unbiased(compressors.build("qsgd"), LECTURE, 4.0)


def test_wrong_bytes_are_caught(register: Callable[[type[Compressor]], str]) -> None:
    name = register(WrongBytes)
    with pytest.raises(AssertionError):
        checks.check_bytes(compressors.build(name), vector("gauss", 120), 10.0, torch.float32)
    checks.check_bytes(compressors.build("topk"), vector("gauss", 120), 10.0, torch.float32)


class NoWrap(UnbiasedBlockRandomK):
    """The block never goes round the end: both ends are sent less often than the middle."""

    @staticmethod
    def start(numel: int, key: Key) -> int:
        return key.shared_seed() % (numel - kept_count(numel, 4.0) + 1)


class Redraw(Atomo):
    """Draws again until something comes out."""

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        payload = super().compress(x, cf, key, dtype)
        while not int(payload.parts[1].sum()):
            key = key._replace(seed=key.seed + 1)
            payload = super().compress(x, cf, key, dtype)
        return payload


class Claims(RandomK):
    """An honest contraction that says it is unbiased."""

    traits = replace(RandomK.traits, unbiased=True)


class Down(Natural):
    """Always rounds down to a power of two."""

    def decode(self, payload: Payload) -> Tensor:
        x = super().decode(payload)
        return torch.where(x.abs() > 1, x / 2, x)


@pytest.mark.parametrize("codec", [NoWrap(), Redraw(), Down(), Claims()])
def test_other_biases_are_caught(codec: Compressor) -> None:
    with pytest.raises(AssertionError):
        checks.check_unbiased(codec, LECTURE, 1.3 if isinstance(codec, Atomo) else 4.0)


class Noisy(ScaledSign):
    """Draws from the clock, so to say."""

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return super().compress(x + torch.rand(1), cf, key, dtype)


class Writes(ScaledSign):
    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        payload = super().compress(x, cf, key, dtype)
        x.zero_()
        return payload


class Forgets(TopK):
    """Subtracts nothing from the residual."""

    def remove(self, payload: Payload, x: Tensor) -> None:
        return


class Swallows(TopK):
    """NaNs look small to it, and do not stay in the residual either."""

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return super().compress(x.nan_to_num(0.0), cf, key, dtype)

    def remove(self, payload: Payload, x: Tensor) -> None:
        super().remove(payload, x.nan_to_num_(0.0))


class NotNested(UnbiasedRandomK):
    """Scales on the way in, so that a second level has the first one's factor."""

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return super().compress(x * cf, cf, key, dtype)


class Absolute(ScaledSign):
    """A sign without scale."""

    def decode(self, payload: Payload) -> Tensor:
        return super().decode(payload).sign()


class NotLinear(QSGD):
    traits = replace(ROUNDED, linear=True)


def test_the_other_checks_can_fail() -> None:
    x = vector("gauss", 64)
    failing: list[Callable[[], None]] = [
        lambda: checks.check_determinism(Noisy(), x, 4.0),
        lambda: checks.check_determinism(Writes(), x.clone(), 4.0),
        lambda: checks.check_conservation(Forgets(), x, 4.0, torch.float32),
        lambda: checks.check_nonfinite(Swallows(), x, 4.0, float("nan")),
        lambda: checks.check_nested(NotNested(), x, 2.0, 4.0),
        lambda: checks.check_homogeneous(Absolute(), x, 4.0),
        lambda: checks.check_energies(Absolute(), x, 4.0),
        lambda: checks.check_linear(NotLinear(), x, vector("gauss", 64, 1), 4.0),
    ]
    for check in failing:
        with pytest.raises(AssertionError):
            check()
