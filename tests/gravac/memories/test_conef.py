"""The claims of contractive memories: error of mean zero, convergence, bytes. Numbers from ConEF."""

import pytest
import torch
from torch import Tensor

from gravac.compressors import Compressor, Key
from gravac.compressors import build as build_codec
from gravac.compressors.countsketch import CountSketch
from gravac.memories import Bucket, ConEFMemory, Memory, build, stability

D = 48 * 256


def quadratic(
    memory: str,
    *,
    steps: int = 800,
    step_size: float = 0.1,
    cf: float = 10.0,
    workers: int = 4,
    seed: int = 0,
) -> float:
    """Largest |x| at the end of gradient descent on ``(x - c_i)² / 2``, block Random-k; early when beyond 1e6."""
    generator = torch.Generator().manual_seed(seed)
    x, codec = torch.randn(D, generator=generator), build_codec("blockrandomk")
    centres = [torch.randn(D, generator=generator) for _ in range(workers)]
    bucket, memories = Bucket(0, ("x",), (D,)), [build(memory) for _ in range(workers)]
    for number in range(steps):
        mean = torch.zeros(D)
        for rank in range(workers):
            p = memories[rank].open(bucket).compensate(x - centres[rank])
            payload = codec.compress(p, cf, Key(seed, number, 0, rank), torch.float32)
            codec.decompress(payload, mean, 1.0 / workers)
            memories[rank].open(bucket).update(codec, payload)
            memories[rank].commit()
        x = x - step_size * mean
        if not float(x.abs().max()) < 1e6:
            break
    return float(x.abs().max())


TABLE_1 = {0.1: 0.9, 0.2: 0.8, 0.3: 0.7, 0.4: 0.6, 0.5: 0.4, 0.6: 0.4, 0.7: 0.3, 0.8: 0.2, 0.9: 0.1}
"""ConEF, table 1: the smallest sketch with which training converges, by β. Its hash is not ours."""


@pytest.mark.parametrize("size", sorted({*TABLE_1.values(), 0.95, 0.55, 0.35}))
def test_every_size_converges_at_its_default_beta(size: float) -> None:
    """With 1 - size, sizes above 1/2 diverged: some of their buckets hold two elements."""
    memory = f"conef-sketch:size={size}"
    assert stability(build(memory), build_codec("blockrandomk"), 10.0) is None
    for seed in range(3 if size == 0.9 else 1):
        assert quadratic(memory, workers=2, seed=seed) < 10.0


@pytest.mark.parametrize(("beta", "size"), TABLE_1.items())
def test_table_1_converges_or_is_announced(beta: float, size: float) -> None:
    """Nothing diverges silently. From β = 0.6 on all of the table converges here too; below, our hash needs more."""
    memory = f"conef-sketch:size={size},beta={beta}"
    announced = stability(build(memory), build_codec("blockrandomk"), 10.0) is not None
    assert announced == (beta < 0.8)
    converges = quadratic(memory, workers=2) < 10.0
    assert converges or announced
    assert converges or beta < 0.6


def test_a_sketch_too_small_for_its_beta_diverges() -> None:
    assert not quadratic("conef-sketch:size=0.2,beta=0.5") < 1e6


class FixedSketch(CountSketch):
    """The same hash in every step and on every rank."""

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> object:  # type: ignore[override]
        return super().compress(x, cf, Key(0, 0, 0, 0), dtype)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_the_literal_form_diverges_with_a_sketch_even_a_large_one(
    beta: float, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode, add, encode again: why ``conef-sketch`` is linear. Here s = 0.8, twice what Table 1 asks at most."""
    if not fresh:
        monkeypatch.setattr("gravac.memories.conef.build", lambda text: FixedSketch())
    assert not quadratic(f"conef:codec=countsketch,cf=1.25,beta={beta}", workers=1) < 1e6


@pytest.mark.parametrize(
    "memory", ["residual", "partial", "conef", "conef:bits=4", "iconef-v1:bits=4", "iconef-v2"]
)
def test_the_others_converge_there(memory: str) -> None:
    # step_size: that of the divergence above makes even exact error feedback swing up to |x| = 80 on the way.
    assert quadratic(memory, workers=2, steps=400, step_size=0.02) < 5.0


@pytest.mark.parametrize("codec", ["topk", "blockrandomk"])
def test_error_feedback_follows_sgd_exactly_except_for_the_residual(codec: str) -> None:
    """x_T = x_0 - Σ η mean(g) + η mean(e_T)."""
    virtual, x = follow("residual", codec, seed=0)
    assert float((virtual - x).abs().max()) < 1e-4


def test_contractive_feedback_follows_it_on_average_and_a_biased_memory_does_not() -> None:
    """The same identity fails by Σ (C(y) - y), of mean zero. With Top-k of the error it is not."""

    def gap(memory: str) -> tuple[float, float]:
        gaps = torch.stack([torch.sub(*follow(memory, "blockrandomk", seed=seed)) for seed in range(40)])
        spread = gaps.std(0).clamp_min(1e-12) / 40**0.5
        return float((gaps.mean(0) / spread).abs().max()), float(gaps.abs().max())

    worst, size = gap("conef:bits=4")
    assert worst < 5.0  # standard errors, over 256 coordinates
    assert size > 1e-3  # it is noisy, so the test says something
    worst, _ = gap("conef-biased")
    assert worst > 8.0


class BiasedMemory(ConEFMemory):
    """Keeps the largest half of the residual: what ConEF must not do."""

    name = "conef-biased"

    def error_codec(self, compressor: Compressor, cf: float) -> tuple[Compressor, float]:
        return build_codec("topk"), 2.0


def follow(memory: str, codec_name: str, seed: int, n: int = 256, steps: int = 40) -> tuple[Tensor, Tensor]:
    """Virtual iterate x_0 - Σ η mean(g) + η mean(e_T), and x_T; gradients do not depend on x, nor on ``seed``."""
    codec, bucket = build_codec(codec_name), Bucket(0, ("x",), (n,))
    memories: list[Memory] = [BiasedMemory() if memory == "conef-biased" else build(memory) for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    drift = torch.randn(n, generator=generator)
    x, virtual, rate = torch.zeros(n), torch.zeros(n), 0.1
    for number in range(steps):
        for rank, one in enumerate(memories):
            gradient = drift + torch.randn(n, generator=generator)
            virtual -= rate * gradient / 2
            p = one.open(bucket).compensate(gradient)
            payload = codec.compress(p, 10.0, Key(seed, number, 0, rank), torch.float32)
            codec.decompress(payload, x, -rate / 2)
            one.open(bucket).update(codec, payload)
            one.commit()
    for one in memories:
        virtual += rate * one.state_dict().get("x", torch.zeros(n)) / 2
    return virtual, x


def test_error_stays_within_the_proven_bounds() -> None:
    """E‖e‖² <= 4(1-δ)G²/δ² for error feedback, 2ρ'(1+ρ')G²/(1-ρ')² with ρ' = (1+θ)ρ for ConEF (θ of int8: 0.004)."""
    n, delta, codec, bucket = 2000, 0.1, build_codec("blockrandomk"), Bucket(0, ("x",), (2000,))
    for text, theta in (("residual", None), ("conef", 0.004)):
        memory, squares = build(text), []
        generator = torch.Generator().manual_seed(0)
        for number in range(200):
            gradient = torch.randn(n, generator=generator)
            gradient /= gradient.norm()  # G = 1
            p = memory.open(bucket).compensate(gradient)
            memory.open(bucket).update(codec, codec.compress(p, 10.0, Key(0, number, 0, 0), torch.float32))
            memory.commit()
            squares.append(float(memory.state_dict()["x"].square().sum()))
        rho = (1 + (theta or 0.0)) * (1 - delta)
        limit = 4 * (1 - delta) / delta**2 if theta is None else 2 * rho * (1 + rho) / (1 - rho) ** 2
        assert sum(squares[100:]) / 100 < limit
        assert sum(squares[100:]) / 100 > 5.0  # about 1/δ: there is something to bound


@pytest.mark.parametrize(
    ("text", "saved"),
    [
        ("residual", -1.0),
        ("conef-sketch:size=0.4", 0.20),
        ("conef-sketch:size=0.1", 0.80),
        ("conef", 0.5 - 2 / 256),
        ("conef:bits=4", 0.75 - 2 / 32),
    ],
)
def test_bytes_saved_are_those_promised(text: str, saved: float) -> None:
    """Of a parameter of 1 M elements, the step's draft included, against textbook error feedback: one float32 each."""
    n = 1 << 20
    bucket, codec, memory = Bucket(0, ("x",), (n,)), build_codec("blockrandomk"), build(text)
    for number in range(2):
        p = memory.open(bucket).compensate(torch.ones(n))
        memory.open(bucket).update(codec, codec.compress(p, 10.0, Key(0, number, 0, 0), torch.float32))
        memory.commit()
    assert 1 - memory.nbytes() / (4 * n) == pytest.approx(saved, abs=0.01)


def keep(text: str, codec_name: str, cf: float, *, rank: int = 0, step: int = 0, n: int = 1000) -> Memory:
    """The memory after one step that sends a Gaussian."""
    memory, codec, bucket = build(text), build_codec(codec_name), Bucket(0, ("x",), (n,))
    p = memory.open(bucket).compensate(gaussian(n))
    memory.open(bucket).update(codec, codec.compress(p, cf, Key(0, step, 0, rank), torch.float32))
    memory.commit()
    return memory


def gaussian(n: int = 1000) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(7))


def test_iconef_2_asks_the_wires_codec_for_the_wires_cf_and_its_own_for_its_own() -> None:
    """Top-k at CF 10 of what Top-k at CF 10 left, then unbiased Random-k at CF 2 of the rest."""
    memory = keep("iconef-v2:codec=randomk-unbiased,cf=2", "topk", 10.0)
    g, decoded = gaussian(), memory.state_dict()["x"]
    order = g.abs().argsort(descending=True)
    sent, first, rest = order[:100], order[100:200], order[200:]
    assert not decoded[sent].any()
    assert torch.equal(decoded[first], g[first])
    kept = rest[decoded[rest] != 0]
    torch.testing.assert_close(decoded[kept], 2 * g[kept])
    assert 350 <= kept.numel() <= 450  # half of them
    wire = build_codec("blockrandomk")
    assert memory.noise(wire, 10.0, 1000) == pytest.approx(
        0.9 * 1.0
    )  # ρ of the wire at its CF, θ at the memory's
    assert memory.noise(wire, 4.0, 1000) == pytest.approx(0.75 * 1.0)


def test_what_the_memory_draws_is_independent_of_what_the_wire_and_other_ranks_draw() -> None:
    """Random-k sends 100 of 1000, of the 900 left unbiased Random-k keeps half. With the wire's own draw it would keep
    the 100 that are gone, and 400; with a draw that ranks share, theirs would be the same."""
    text, counts, common = "conef:codec=randomk-unbiased,cf=2", [], []
    for step in range(20):
        ranks = [keep(text, "randomk", 10.0, rank=rank, step=step).state_dict()["x"] != 0 for rank in (0, 1)]
        counts += [int(rank.sum()) for rank in ranks]
        common.append(int((ranks[0] & ranks[1]).sum()))
    assert sum(counts) / len(counts) == pytest.approx(450, abs=6)  # standard error 1.1
    assert sum(common) / len(common) == pytest.approx(225, abs=12)  # standard error 2.4


def test_rounding_on_the_wire_and_in_the_memory_err_independently() -> None:
    """Both are int4. With one draw for both, what the wire rounded up the memory rounds up as well."""
    n, codec, bucket, products = 4096, build_codec("int4"), Bucket(0, ("x",), (4096,)), []
    for step in range(10):
        memory, key = build("conef:bits=4"), Key(0, step, 0, 0)
        p = memory.open(bucket).compensate(gaussian(n))
        payload = codec.compress(p.clone(), 1.0, key, torch.float32)
        left = gaussian(n) - codec.decode(payload)
        memory.open(bucket).update(codec, payload)
        memory.commit()
        error = memory.state_dict()["x"] - left
        products.append(float(torch.corrcoef(torch.stack([left, error]))[0, 1]))
    assert abs(sum(products) / len(products)) < 0.03  # standard error 0.005


def test_a_residual_that_is_saved_between_two_changes_of_its_size_keeps_its_bits() -> None:
    """Clipping and the learning rate change it in one step, and a checkpoint is between them."""
    whole, saved = keep("conef", "int4", 1.0), build("conef")
    whole.rescale(0.9866858143134882)
    saved.load_state_dict(whole.state_dict())
    for memory in (whole, saved):
        memory.rescale(1 / 0.9)
    assert whole.state_dict().keys() == saved.state_dict().keys()
    for name, one in whole.state_dict().items():
        assert torch.equal(one, saved.state_dict()[name])
