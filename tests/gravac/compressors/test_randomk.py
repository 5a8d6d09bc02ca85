"""Random-k by elements and by blocks: with a block for each tensor of a bucket it is still Random-k as a whole."""

import pytest
import torch
from torch import Tensor

from gravac.compressors import Compressor, Key, RandomK, build, kept_count
from tests.support.maths import checks
from tests.support.maths.checks import ENERGY, KEY, LECTURE, draws, vector

SHAPES = ((300,), (), (7,), (0,), (20, 10), (3, 1, 4))
N = 520
SIZES = (300, 1, 7, 200, 12)
NAMES = ("blockrandomk", "blockrandomk-unbiased", "blockrandomk+int8")


def fitted(name: str) -> Compressor:
    return build(name).fitted(SHAPES)


def masks(codec: Compressor, cf: float, steps: int) -> torch.Tensor:
    """Which elements were sent, shape ``(steps, N)``."""
    sent = torch.zeros(steps, N, dtype=torch.bool)
    for step in range(steps):
        support = codec.compress(vector("gauss", N), cf, KEY._replace(step=step), torch.float32).support
        assert support is not None
        assert support.unique().numel() == support.numel() == kept_count(N, cf)
        sent[step, support.long()] = True
    return sent


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_has_its_share_in_every_step(name: str) -> None:
    """With one block for the bucket, a layer would wait for many steps and then be sent whole."""
    shares = torch.stack([piece.sum(1) for piece in masks(fitted(name), 10.0, 100).split(list(SIZES), 1)], 1)
    for share, size in zip(shares.unbind(1), SIZES, strict=True):
        assert int(share.min()) >= size // 10
        assert int(share.max()) <= size // 10 + 1


def test_each_share_is_one_run_that_goes_round_its_tensors_end() -> None:
    rounds = 0
    for mask in masks(fitted("blockrandomk"), 4.0, 200):
        for piece in mask.split(list(SIZES)):
            edges = int((piece != piece.roll(1)).sum())
            assert edges in (0, 2)
            rounds += bool(piece[0] and piece[-1] and not piece.all())
    assert rounds > 100


def test_every_element_is_sent_equally_often_in_tensors_of_any_size() -> None:
    steps, rate = 4000, 52 / 520
    counts = masks(fitted("blockrandomk"), 10.0, steps).sum(0)
    assert float((counts - rate * steps).abs().max()) < 4.5 * (steps * rate * (1 - rate)) ** 0.5


def test_ranks_draw_alike_and_steps_do_not() -> None:
    codec, x = fitted("blockrandomk"), vector("gauss", N)
    one, rank, step = (
        codec.compress(x, 10.0, key, torch.float32).support
        for key in (KEY, KEY._replace(rank=0), KEY._replace(step=18))
    )
    assert one is not None
    assert rank is not None
    assert step is not None
    assert torch.equal(one, rank)
    assert not torch.equal(one, step)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cf", [1.0, 3.0, 10.0, 400.0, 1e6])
def test_it_keeps_the_promises_of_its_codec(name: str, cf: float) -> None:
    x = vector("student", N)
    for dtype in (torch.float32, torch.bfloat16):
        checks.check_bytes(fitted(name), x, cf, dtype)
        checks.check_travel(fitted(name), x, cf, dtype, 1, fitted(name))
        checks.check_blank(fitted(name), N, cf, dtype)
        checks.check_dtypes(fitted(name), x, cf, dtype)
    checks.check_conservation(fitted(name), x, cf, torch.float32)
    checks.check_determinism(fitted(name), x, cf)
    checks.check_energies(fitted(name), x, cf)
    checks.check_bound(fitted(name), x, cf)
    if fitted(name).traits.linear:
        checks.check_linear(fitted(name), x, vector("gauss", N), cf)


def test_unbiased_stays_unbiased() -> None:
    checks.check_unbiased(fitted("blockrandomk-unbiased"), vector("gauss", N), 10.0, 1500)


def test_levels_are_compressed_one_by_one_because_shares_are_rounded_again() -> None:
    codec, x = fitted("blockrandomk"), vector("gauss", N)
    assert not codec.traits.nested
    for payload, cf in zip(codec.levels(x, (4.0, 40.0), KEY, torch.float32), (4.0, 40.0), strict=True):
        assert torch.equal(payload.pack(), codec.compress(x, cf, KEY, torch.float32).pack())
    with pytest.raises(ValueError, match=r"not nested: compress the original tensor at cf=40"):
        codec.narrow(codec.compress(x, 4.0, KEY, torch.float32), 40.0)


def test_one_tensor_is_sent_as_if_it_were_not_fitted() -> None:
    x = vector("gauss", N)
    one, flat = build("blockrandomk").fitted(((20, 26), (0,))), build("blockrandomk")
    assert torch.equal(
        one.compress(x, 9.0, KEY, torch.float32).pack(), flat.compress(x, 9.0, KEY, torch.float32).pack()
    )
    assert one.traits.nested


def test_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="blockrandomk was fitted to tensors of"):
        fitted("blockrandomk").compress(torch.ones(N - 1), 4.0, KEY, torch.float32)


def test_randomk() -> None:
    errors = (draws(build("randomk"), LECTURE, 4.0, 4000) - LECTURE).square().sum(1) / ENERGY
    assert float(errors.mean()) == pytest.approx(0.75, abs=0.03)
    gains = draws(build("randomk-unbiased"), LECTURE, 4.0, 4000).square().sum(1) / ENERGY
    assert float(gains.mean()) == pytest.approx(4.0, rel=0.05)
    assert build("randomk-unbiased").bound(8, 4.0).omega == 3.0


@pytest.mark.parametrize("name", ["blockrandomk", "blockrandomk-unbiased"])
def test_every_start_of_the_block_together_gives_x_exactly(name: str) -> None:
    codec, by_place = build(name), dict[int, Tensor]()
    for step in range(200):
        payload = codec.compress(LECTURE, 4.0, KEY._replace(step=step), torch.float32)
        assert payload.support is not None
        by_place[int(payload.support[0])] = codec.decode(payload)
    assert sorted(by_place) == list(range(8))
    total = torch.stack(list(by_place.values())).sum(0)
    assert torch.equal(total / 8 * (4 if name == "blockrandomk" else 1), LECTURE)


class Constant(RandomK):
    """The same positions whatever the key."""

    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        return torch.arange(kept_count(numel, cf))


def test_equal_positions_for_every_key_would_be_seen() -> None:
    assert torch.equal(Constant().draw(50, 10.0, KEY, torch.device("cpu")), torch.arange(5))
    with pytest.raises(AssertionError):
        checks.check_bound(Constant(), vector("one_hot", 50), 10.0)
