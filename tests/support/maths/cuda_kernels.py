"""Triton's kernels against plain torch, to the bit; ``test_cuda.py`` runs this in a process of its own."""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors import Key, build
from gravac.kernels import backend
from gravac.kernels.device import owned, rounded, step_sums, tiled
from gravac.kernels.packing import pack_wide, unpack_wide
from gravac.optim.adam import aged_rule
from tests.support.maths.backends import on, same, vector
from tests.support.maths.triton_device import GPU, HERE, SHIPPED, SMALL, alike, module, prepare, triton

Place = Callable[[Tensor], Tensor]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["normal", "mixed", "wild"]
LARGE = (3_000_001,) if GPU else ()
"""Enough elements for many programs of the shipped sizes; too many for the interpreter."""


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    prepare()


@pytest.fixture(params=["small", "shipped"] if GPU else ["small"], autouse=True)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "small":
        for name, constants in SMALL.items():
            for constant, value in constants.items():
                monkeypatch.setattr(module(name), constant, value)
    # The interpreter computes in numpy, which warns of tensors as wild as these. A GPU's machine need not have it.
    with nullcontext() if GPU else importlib.import_module("numpy").errstate(all="ignore"):
        yield


def whatever_nan(counts: Tensor) -> Tensor:
    """Return counts with all NaN in one bin: a CPU and a GPU make different ones of inf - inf."""
    first = (0x7F800000 >> 19) + 1
    return torch.cat([counts[:first], counts[first:].sum(0, keepdim=True)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_added_and_all_is_counted(dtype: torch.dtype, kind: str) -> None:
    for n in (0, 1, 129, 500, *LARGE):
        g, e = vector(n, n, kind).to(dtype), vector(n, n + 1, kind)

        def run(put: Place, g: Tensor = g, e: Tensor = e) -> tuple[Tensor, ...]:
            out = put(torch.full_like(e, 7.0))
            found = kernels.tally(put(g), put(e), share=0.3, out=out, sums=True)
            assert found.products is not None
            return out, whatever_nan(found.counts), found.energies, found.products

        mine = triton(run)
        with on("reference"):
            theirs = run(Tensor.clone)
        same(mine[:2], theirs[:2])
        # As promised: bin 0 is taken as nothing, and 1 to 15 hold numbers below the normal ones.
        assert not mine[2][0]
        error = (mine[2] - theirs[2]).abs()
        assert (error[1:16] <= 2.0**-15 * theirs[2][1:16]).all()
        assert (error[16:] <= 2.0**-23 * theirs[2][16:]).all()
        assert torch.allclose(mine[3], theirs[3], rtol=2.0**-23, equal_nan=True)
        assert torch.allclose(mine[3], theirs[3], rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_over_the_residual_elements_that_are_not_finite_count_as_nothing(dtype: torch.dtype) -> None:
    for n in (1, 500, *LARGE):
        g, e = vector(n, n, "wild").to(dtype), vector(n, n + 1, "normal")

        def run(put: Place, g: Tensor = g, e: Tensor = e) -> tuple[Tensor, ...]:
            p = put(e)
            found = kernels.tally(put(g), p, out=p, sums=True)
            assert found.products is not None
            return p, found.counts, found.products

        mine = triton(run)
        with on("reference"):
            theirs = run(Tensor.clone)
        same(mine[:2], theirs[:2])
        assert bool(mine[0].isfinite().all())
        assert bool(mine[2][0].isfinite()) == bool(g.isfinite().all())


def test_what_is_counted_is_copied_or_left() -> None:
    x = vector(300, 3, "wild")

    def run(put: Place) -> tuple[Tensor, ...]:
        mine, copy = put(x), put(torch.empty(300))
        first = kernels.tally(mine, out=copy).counts
        again = kernels.tally(mine, mine, share=0.5, out=mine).counts
        return mine, copy, *map(whatever_nan, (first, again, kernels.tally(copy).counts))

    alike(run)


def test_a_table_holds_what_is_put_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one bin, the largest significand: neither the count nor the sum beside it runs into the other."""
    assert SHIPPED["tally"]["BLOCK"] * SHIPPED["tally"]["BLOCKS_A_TABLE"] < 2**20
    monkeypatch.setattr(module("tally"), "BLOCK", 1 << 18)
    monkeypatch.setattr(module("tally"), "BLOCKS_A_TABLE", 3)
    x = torch.full((3 << 18,), 1.9999999)
    counts, energies = triton(
        lambda put: (lambda found: (found.counts, found.energies))(kernels.tally(put(x)))
    )
    place = (127 << 4) | 15
    assert int(counts[place]) == x.numel()
    assert float(energies.sum()) == pytest.approx(float(x[0].double() ** 2) * x.numel(), rel=2.0**-23)


def taken(x: Tensor, k: int, clear: bool) -> None:
    def run(put: Place) -> tuple[Tensor, ...]:
        mine = put(x)
        return *kernels.take_top(mine, k, clear=clear), mine

    alike(run)


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_are_taken_and_zeros_left(kind: str) -> None:
    many = [(n, k) for n in LARGE for k in (30_000, 1_000_000)]
    few = ((300, 150), (257, 256)) if kind == "wild" else ((600, 6), (900, 1))
    for n, k in ((1, 1), (33, 32), *few, *many):
        taken(vector(n, n + k, kind), k, clear=k != 150)


def test_ties_go_to_the_lowest_places() -> None:
    generator = torch.Generator().manual_seed(0)
    sparse = torch.zeros(400)
    sparse[torch.randperm(400, generator=generator)[:20]] = torch.randn(20, generator=generator)
    taken(sparse, 60, clear=True)  # zeros too must be taken
    taken(torch.full((260,), -0.3), 120, clear=True)
    taken(torch.randn(500, generator=generator).bfloat16().float(), 61, clear=True)  # eight sizes in a bin
    taken(1.0 + torch.rand(200, generator=generator) / 16, 70, clear=True)  # all in one bin
    taken(torch.tensor([1.0, -1.0, torch.inf, torch.nan, -torch.nan, -torch.inf]).repeat(30), 99, clear=True)


def test_a_second_level_comes_from_the_first_ones_values() -> None:
    x = vector(900, 4, "mixed")

    def run(put: Place) -> tuple[Tensor, ...]:
        mine = put(x)
        hint = kernels.tally(mine)
        places, values = kernels.take_top(mine, 400, hint)
        return places, *kernels.take_top(values, 50, hint)

    alike(run)


def test_the_tally_of_another_tensor_takes_nothing_and_shows() -> None:
    """No error is raised, because that would wait, so the values must not pass for a gradient."""
    x = vector(1000, 1, "normal")
    for other in (vector(1000, 2, "normal") * 1e6, torch.zeros(1000), x[:300], x * 2):

        def run(put: Place, other: Tensor = other) -> tuple[Tensor, ...]:
            mine = put(x)
            return *kernels.take_top(mine, 400, kernels.tally(put(other)), clear=True), mine

        places, values, left = triton(run)
        assert torch.equal(left, x)
        assert values.isnan().all()
        assert places.tolist() == list(range(400))


@pytest.mark.parametrize("dtype", DTYPES)
def test_payloads_add_up(dtype: torch.dtype) -> None:
    for count, wide in ((0, True), (5, False), (150, True)):
        places = torch.randperm(300, generator=torch.Generator().manual_seed(count))[:count]
        places, values = places if wide else places.int(), vector(count, 5, "wild").to(dtype)
        alike(lambda put, p=places, v=values: added(put, torch.ones(300), p, v, 0.3))
    twice = torch.tensor([3, 1, 3, 3, 299]).repeat(30)
    small = torch.arange(150.0).to(dtype)  # sums that every order of adding gives exactly
    alike(lambda put: added(put, torch.ones(300), twice, small, 0.5))


def added(put: Place, out: Tensor, places: Tensor, values: Tensor, scale: float) -> Tensor:
    mine = put(out)
    kernels.scatter_add(mine, put(places), put(values), scale)
    return mine


@pytest.mark.parametrize("bad", [-1, 300, 2**31 - 1])
def test_a_place_outside_shows(bad: int) -> None:
    places = torch.tensor([2, 7, bad], dtype=torch.int32)
    out = triton(lambda put: added(put, torch.zeros(300), places, torch.ones(3), 1.0))
    assert out[0].isnan()
    assert out[1:].tolist() == [0, 1, 0, 0, 0, 0, 1, *[0] * 292]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9, 17, 31])
def test_codes_are_packed_and_come_back(width: int) -> None:
    for n in (0, 1, 7, 200):
        codes = torch.randint(1 << width, (n,), generator=torch.Generator().manual_seed(n)).int()
        packed = alike(lambda put, codes=codes: pack_wide(put(codes), width))
        assert torch.equal(triton(lambda put, p=packed, n=n: unpack_wide(put(p), n, width)), codes)
        if width <= 8:
            same(alike(lambda put, codes=codes: kernels.pack(put(codes), width)), packed)
            alike(lambda put, p=packed, n=n: kernels.unpack(put(p), n, width))


@pytest.mark.parametrize(
    ("numel", "count"), [(0, 0), (1, 1), (65, 2), (700, 700), (700, 300), (3000, 300), (3000, 1)]
)
def test_places_are_packed_and_come_back(numel: int, count: int) -> None:
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(count))
    places = order[:count].sort().values
    packed = alike(lambda put: kernels.pack_positions(put(places), numel))
    same(alike(lambda put: kernels.pack_positions(put(places.int()), numel)), packed)
    back = triton(lambda put: kernels.unpack_positions(put(packed), count, numel))
    assert torch.equal(back, places.int())


def test_the_ends_of_the_range() -> None:
    numel = 2**31 - 1
    for places in ([0, numel - 1], [numel - 1], [0]):
        packed = alike(lambda put, p=places: kernels.pack_positions(put(torch.tensor(p)), numel))
        count = len(places)
        back = triton(lambda put, p=packed, k=count: kernels.unpack_positions(put(p), k, numel))
        assert back.tolist() == places


def test_a_damaged_payload_stays_within_its_bounds() -> None:
    packed = kernels.pack_positions(torch.arange(0, 1000, 20), 1000)
    for value, missing in ((0, True), (255, False)):
        broken = packed.clone()
        broken[-4:] = value
        places = triton(lambda put, b=broken: kernels.unpack_positions(put(b), 50, 1000))
        assert places.shape == (50,)
        assert bool((places == -1).any()) == missing
    with pytest.raises(ValueError, match="bytes given, 50 places of 1000 take"):
        triton(lambda put: kernels.unpack_positions(put(packed[:-1]), 50, 1000))


@pytest.mark.parametrize("block", [1, 7, 32, 200, 10**6])
def test_blocks_are_rounded_alike(block: int) -> None:
    for n, width, kind in ((1, 2, "normal"), (300, 4, "wild"), (400, 8, "mixed"), (260, 3, "normal")):
        x = vector(n, n + block, kind)
        scales, packed = alike(lambda put, x=x, w=width: kernels.quantize(put(x), block, w, 11))
        alike(lambda put, s=scales, p=packed, n=n, w=width: kernels.dequantize(put(s), put(p), n, block, w))
    for nothing in alike(lambda put: kernels.quantize(put(torch.empty(0)), block, 4, 1)):
        assert not nothing.numel()


@pytest.mark.parametrize("n", [0, 1, 127, 300])
def test_noise_is_the_same(n: int) -> None:
    for seed in (0, 2**62 + 5):
        with on("cuda"):
            mine = kernels.noise(n, seed, HERE).cpu()
        with on("reference"):
            same(mine, kernels.noise(n, seed, torch.device("cpu")))


@pytest.mark.parametrize(
    ("numel", "count"), [(0, 0), (700, 9), (1025, 0), (1100, 300), (1100, 1100), (2**31 - 1, 40)]
)
def test_the_same_places_are_drawn(numel: int, count: int) -> None:
    with on("cuda"):
        mine = kernels.distinct(numel, count, 7, HERE).cpu()
    with on("reference"):
        same(mine, kernels.distinct(numel, count, 7))


def test_products_lose_nothing() -> None:
    for n, other in ((0, torch.float32), (300, torch.float32), (700, torch.bfloat16)):
        x, y = vector(n, 1, "mixed"), vector(n, 2, "normal").to(other)
        mine = triton(lambda put, x=x, y=y: kernels.product(put(x), put(y)))
        assert mine.dtype == torch.float64
        terms = (x.double() * y.double()).tolist()
        assert float(mine) == pytest.approx(math.fsum(terms), rel=1e-12)
        assert triton(lambda put, x=x: torch.tensor(kernels.energy(put(x)))) == pytest.approx(
            math.fsum((x.double() ** 2).tolist()), rel=1e-6
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [True, False])
def test_a_step_is_undone_unless_it_counts(kept: bool, dtype: torch.dtype) -> None:
    for n in (0, 1, 700, *LARGE):
        out, x = vector(n, n, "mixed"), vector(n, n + 1, "wild").to(dtype)

        def run(put: Place, out: Tensor = out, x: Tensor = x) -> Tensor:
            mine = put(out)
            kernels.subtract_unless(put(torch.tensor(kept)), mine, put(x))
            return mine

        found = alike(run)
        assert torch.equal(found, out) == (kept or not n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("growth", [1.0, 0.37, 50.0])
@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_a_step_by_age(skip: float, growth: float, dtype: torch.dtype) -> None:
    table = aged_rule(0.9, 0.999, True, torch.float32, torch.device("cpu"))
    rates = torch.tensor([3e-3, 1e-8, 0.99, 0.1, skip])
    for n in (0, 1, 300, *LARGE):
        p, g, m, v = (vector(n, n + seed, "normal").to(dtype) for seed in range(4))
        age = (vector(n, n, "normal").abs() * 9000 + 128).clamp(max=32767).to(torch.int16)
        v, arrived = v.abs(), p > 0.5
        for mask in (None, arrived, arrived + (p > 1.0).to(torch.uint8)):

            def run(put: Place, mask: Tensor | None = mask, own: Any = (p, g, m, v, age)) -> Any:
                mine = tuple(put(each) for each in own)
                kernels.step_aged(
                    *[*mine, None if mask is None else put(mask), put(table), put(rates), 0.9, 0.5, growth]
                )
                return mine

            alike(run)


@pytest.mark.parametrize("codec", ["topk", "topk+bf16", "topk+int4", "int8", "randomk"])
def test_codecs_send_the_same_bytes(codec: str) -> None:
    """Two levels at once, over the wire and back."""
    x, key, compressor = vector(400, 8, "mixed"), Key(1, 2, 3, 0), build(codec)

    def run(put: Place) -> tuple[Tensor, ...]:
        mine, decoded = put(x), put(torch.zeros(400))
        hint = kernels.tally(mine) if compressor.uses_histogram else None
        payloads = compressor.levels(mine, (4.0, 50.0), key, torch.float32, hint)
        wire = tuple(payload.pack() for payload in payloads)
        for cf, buffer in zip((4.0, 50.0), wire, strict=True):
            compressor.decompress(compressor.layout(400, cf, torch.float32).unpack(buffer, key), decoded, 0.5)
        # Adding to the memory of a GPU takes numbers below the normal ones as 0.
        return *wire, torch.where(decoded.abs() < torch.finfo(torch.float32).tiny, 0.0, decoded)

    alike(run)


def step(g: Tensor, e: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    """All that is done to a bucket, from the gradient to the mean, and what could be done instead."""
    n, key = g.numel(), Key(1, 2, 3, 0)
    results: list[Tensor] = []
    for name in ("topk+bf16", "topk+int8", "int4"):
        compressor = build(name)
        hint = kernels.tally(g, e, share=0.9, out=out, sums=True)
        for payload in compressor.levels(out, (10.0, 100.0), key, torch.float32, hint):
            arrived = compressor.layout(n, payload.cf, torch.float32).unpack(payload.pack(), key)
            compressor.decompress(arrived, g, 0.5)
        results += [hint.counts, hint.energies]
    places, values = kernels.take_top(out, n // 100, hint, clear=True)
    kernels.scatter_add(g, places, values, 0.5)
    drawn = kernels.distinct(n, n // 100, 3, g.device)
    run = kernels.take_run(out, n - 5, n // 100)
    kernels.add_run(g, n - 5, run, 0.5)
    signs = kernels.unpack(kernels.pack(g >= 0, 1), n, 1)
    return *results, drawn, signs, kernels.product(g, out), kernels.noise(n, 5, g.device)


def test_the_host_never_waits_for_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the meta device have no data, so code that would wait for them raises; no GPU is needed."""
    tensors = [torch.empty(100_003, device="meta") for _ in range(3)]
    shapes = [*([(4096,)] * 6), (1000,), (100_003,), (), (100_003,)]
    with on("reference"), pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        kernels.count_above(tensors[0], 1.0)  # its result is a number
    with on("reference"):
        assert [tuple(result.shape) for result in step(*tensors)] == shapes
    monkeypatch.setattr(backend, "_GPUS", ("meta",))
    for name in SMALL:
        monkeypatch.setattr(module(name), "launch", lambda *arguments, **constants: None)
    with on("cuda"):
        assert [tuple(result.shape) for result in step(*tensors)] == shapes


@pytest.mark.skipif(not GPU, reason="no GPU here: nothing that torch could catch waiting, nothing compiled")
def test_a_step_waits_for_nothing_and_compiles_nothing() -> None:
    import triton as compiler

    g, e, out = (vector(1_000_003, seed).to(HERE) for seed in (1, 2, 3))
    late: list[object] = []
    with on("cuda"):
        kernels.warm()
        compiler.knobs.runtime.jit_post_compile_hook = lambda **given: late.append(given.get("repr"))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            results = step(g, e, out)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            compiler.knobs.runtime.jit_post_compile_hook = None
    assert not late
    assert int(results[0].sum()) == g.numel()
    assert results[6].unique().numel() == g.numel() // 100


@pytest.mark.parametrize("values", get_args(tiled.Values))
@pytest.mark.parametrize(
    ("sizes_of", "tile", "dtype", "draft", "counts"),
    [
        ([(700, 70)], 128, torch.float32, False, True),
        ([(2000, 5), (130, 130), (1, 1), (513, 64)], 256, torch.float32, False, False),
        ([(300, 300), (900, 31)], 128, torch.bfloat16, True, True),
        ([(777, 50), (1024, 100), (64, 8)], 256, torch.bfloat16, False, True),
        ([(1500, 300)], 1024, torch.float32, True, False),
        *(
            ([(3_000_001, 180_000), (4096, 40)], tiled.TILE, dtype, False, True)
            for dtype in DTYPES[:2]
            if GPU
        ),
    ],
)
def test_whole_messages(
    values: tiled.Values,
    sizes_of: list[tuple[int, int]],
    tile: int,
    dtype: torch.dtype,
    draft: bool,
    counts: bool,
) -> None:
    """Two ranks, groups of buckets, four steps: one with a gradient that is not finite, one without a residual, one of
    zeros. On a GPU tiles come in another order, and with them values are rounded in other blocks."""
    layouts, ranks = [tiled.TiledLayout(n, k, values, tile=tile) for n, k in sizes_of], 2
    theirs, mine = (
        [tiled.TiledGroup([tiled.TiledBuffers(one, where) for one in layouts], ranks) for _ in range(ranks)]
        for where in (torch.device("cpu"), HERE)
    )
    residuals = [[torch.randn(n) * 0.3 for n, _ in sizes_of] for _ in range(ranks)]
    for step in range(4):
        grads = [[(torch.randn(n) * (step < 3)).to(dtype) for n, _ in sizes_of] for _ in range(ranks)]
        if step == 1:
            grads[1][0][5], grads[1][0][7] = math.nan, math.inf
        found: dict[str, list[list[tiled.TiledStep]]] = {}
        for use, groups in (("reference", theirs), ("cuda", mine)):
            with on(use):
                found[use] = [_encoded(groups[r], grads[r], residuals[r], draft, step) for r in range(ranks)]
                for one in groups:
                    one.arrived.copy_(torch.stack([each.message for each in groups]))
        for rank in range(ranks):
            for left, right in zip(found["reference"][rank], found["cuda"][rank], strict=True):
                one, other = left.buffers, right.buffers
                assert torch.allclose(left.row, right.row.cpu(), rtol=1e-9, equal_nan=True)
                assert torch.allclose(one.level, other.level.cpu(), rtol=1e-6)
                other.level.copy_(one.level)
                if not GPU:
                    assert torch.equal(one.message, other.message)
                    assert torch.equal(one.places, other.places)
                elif values != "twobit":
                    assert torch.equal(left.rest, right.rest.cpu())
            outs = []
            for use, groups in (("reference", theirs), ("cuda", mine)):
                with on(use):
                    known = torch.tensor(counts, device=groups[rank].message.device)
                    tiled.decode(groups[rank], known, found[use][rank], rank)
                ends = ((each.out, each.rest, each.senders) for each in found[use][rank])
                outs.append(tuple(one.cpu() for each in ends for one in each if one is not None))
            if not GPU or values != "twobit":
                same(*outs)
            residuals[rank] = [each.rest.cpu().clone() for each in found["reference"][rank]]


def _encoded(
    group: tiled.TiledGroup,
    gradients: list[Tensor],
    residuals: list[Tensor],
    draft: bool,
    step: int,
    way: Any = tiled,
    fails: bool = False,
) -> list[tiled.TiledStep]:
    steps, where = [], group.message.device
    for buffers, gradient, residual in zip(group.members, gradients, residuals, strict=True):
        g, e = gradient.clone().to(where), residual.clone().to(where)
        row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=where)
        if not buffers.ready:
            way.first_level(buffers, g, e)
        rest = torch.empty_like(e) if draft else e
        senders = torch.ones(g.numel(), dtype=torch.uint8, device=where)
        undone = None if draft else rest
        steps.append(tiled.TiledStep(buffers, g, g, None if step == 2 else e, rest, row, undone, senders))
    if fails:  # to encode the last one: all of it waits
        steps[-1].buffers.clear()
        steps[-1].rest.copy_(residuals[-1])
    way.encode(group, steps[:-1] if fails else steps)
    return steps


@pytest.mark.parametrize("values", get_args(tiled.Values))
@pytest.mark.parametrize(
    ("sizes_of", "ranks", "tile", "dtype", "draft", "counts"),
    [
        ([(300, 40)], 2, 64, torch.float32, False, True),
        ([(260, 12), (70, 16)], 3, 32, torch.float32, False, False),
        ([(150, 150)], 2, 64, torch.bfloat16, True, True),
        ([(150, 30)], 2, 32, torch.bfloat16, False, False),
        *(([(3_000_001, 60_000), (99_000, 40)], 3, 4096, dtype, False, True) for dtype in DTYPES[:2] if GPU),
    ],
)
def test_owned_messages(
    values: tiled.Values,
    sizes_of: list[tuple[int, int]],
    ranks: int,
    tile: int,
    dtype: torch.dtype,
    draft: bool,
    counts: bool,
) -> None:
    """Groups of buckets, four steps: one with a gradient that is not finite, one without a residual, one of zeros. In
    the second one the last bucket of a rank is not encoded, and adds up all the same."""
    layouts = [owned.OwnedLayout(n, -(-k // ranks), values, ranks, 77 + n, tile) for n, k in sizes_of]
    theirs, mine = (
        [
            owned.OwnedGroup([owned.OwnedBuffers(one, rank, where) for one in layouts], ranks)
            for rank in range(ranks)
        ]
        for where in (torch.device("cpu"), HERE)
    )
    sides = (("reference", theirs), ("cuda", mine))
    residuals = [[torch.randn(n) * 0.3 for n, _ in sizes_of] for _ in range(ranks)]
    for step in range(4):
        grads = [[(torch.randn(n) * (step < 3)).to(dtype) for n, _ in sizes_of] for _ in range(ranks)]
        if step == 1:
            grads[1][0][5], grads[1][0][7] = math.nan, math.inf
        found: dict[str, list[list[tiled.TiledStep]]] = {}
        for use, groups in sides:
            with on(use):
                found[use] = [
                    _encoded(one, grads[r], residuals[r], draft, step, owned, (step, r) == (1, 1))
                    for r, one in enumerate(groups)
                ]
        _same_messages(theirs, mine, added=False)
        for use, groups in sides:
            with on(use):
                for rank, one in enumerate(groups):
                    one.arrived.copy_(torch.stack([each.message[rank] for each in groups]))
                    one.arrived[rank] = one.arrived[rank - 1]  # what it has for itself counts for nothing
                    owned.add_up(one, found[use][rank])
                for one in groups:
                    one.arrived.copy_(torch.stack([each.message[rank] for rank, each in enumerate(groups)]))
        _same_messages(theirs, mine, added=True)
        for rank in range(ranks):
            for left, right in zip(found["reference"][rank], found["cuda"][rank], strict=True):
                # What an owner has of its own is the difference of two numbers there.
                assert torch.allclose(left.row, right.row.cpu(), rtol=1e-5, atol=1e-5, equal_nan=True)
            outs = []
            for use, groups in sides:
                with on(use):
                    known = torch.tensor(counts, device=groups[rank].message.device)
                    owned.decode(groups[rank], known, found[use][rank])
                ends = ((each.out, each.rest, each.senders) for each in found[use][rank])
                outs.append(tuple(one.cpu() for each in ends for one in each if one is not None))
            if not GPU or values != "twobit":
                same(*outs)
            for one in mine[rank].members:
                assert isinstance(one, owned.OwnedBuffers)
                assert not one.energy.any(), "the next step adds to it"
            residuals[rank] = [each.rest.cpu().clone() for each in found["reference"][rank]]


def _same_messages(theirs: list[owned.OwnedGroup], mine: list[owned.OwnedGroup], added: bool) -> None:
    for rank, (ours, others) in enumerate(zip(theirs, mine, strict=True)):
        for one, other in zip(ours.members, others.members, strict=True):
            assert torch.allclose(one.level, other.level.cpu(), rtol=1e-6)
            other.level.copy_(one.level)
            for owner, (message, found) in enumerate(zip(one.message, other.message, strict=True)):
                if not GPU and (added or owner != rank):  # a rank's own follows from what arrives
                    assert torch.equal(message, found)
            if not GPU:
                assert torch.equal(one.places, other.places)


def test_a_damaged_message_to_an_owner_shows() -> None:
    """In the gradient's energy, so that no rank keeps the step; and the owner's residual stays finite."""
    layout = owned.OwnedLayout(700, 30, "bfloat16", 2, 5, 128)
    with on("cuda"):
        group = owned.OwnedGroup([owned.OwnedBuffers(layout, 0, HERE)], 2)
        (step,) = _encoded(group, [torch.randn(700)], [torch.zeros(700)], False, 0, owned)
        group.arrived[1, 1] = 1 << 12
        owned.add_up(group, [step])
        assert step.row[0].isnan()
        assert step.rest.isfinite().all()
        group.arrived[1, 1] = 1 << 12
        owned.decode(group, torch.tensor(True, device=HERE), [step])
        assert bool(step.out.isnan().sum() == 128)


ROUNDINGS = [rounded.BFLOAT16, rounded.RANDOM, *map(rounded.nearest, (39, 7, 2))]


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda one: f"{one.kind}-{one.levels}")
@pytest.mark.parametrize("shards", [False, True], ids=["gathered", "shards"])
@pytest.mark.parametrize(
    ("n", "dtype", "draft", "counts"),
    [
        (1, torch.float32, False, True),
        (700, torch.bfloat16, True, True),
        (3001, torch.bfloat16, False, True),
        (300, torch.float32, False, False),
        *((3_000_001, dtype, False, True) for dtype in DTYPES[:2] if GPU),
    ],
)
def test_rounded_messages(
    rounding: rounded.Rounding, shards: bool, n: int, dtype: torch.dtype, draft: bool, counts: bool
) -> None:
    """Two ranks, and two buckets in one launch: one of other levels, with a gradient that is not finite, or without a
    residual."""
    sides = [
        [_Rounded(rounding, shards, rank, n, dtype, draft, where) for rank in range(2)]
        for where in (torch.device("cpu"), HERE)
    ]
    found = []
    for use, side in zip(("reference", "cuda"), sides, strict=True):
        with on(use):
            found.append(_exchanged(side, torch.tensor(counts, device=side[0].where)))
    for (rows, tensors), (others, mine) in zip(*found, strict=True):
        assert torch.allclose(rows, others, rtol=1e-9, atol=1e-12, equal_nan=True)
        same(tensors, mine)


class _Rounded:
    """The two buckets of a rank."""

    def __init__(
        self,
        rounding: rounded.Rounding,
        shards: bool,
        rank: int,
        n: int,
        dtype: torch.dtype,
        draft: bool,
        where: torch.device,
    ) -> None:
        self.where, self.members = where, []
        other = rounded.nearest(15) if rounding.kind == "nearest" else rounding
        for number, (size, one) in enumerate(((n, rounding), (300, other))):
            layout = rounded.RoundedLayout(size, 2, shards, one, row=rounded.ROW if GPU else 256)
            g, e = vector(size, 10 * number + rank, "normal").to(dtype), vector(size, number + rank)
            if number == rank == 1:
                g[3], g[7] = math.nan, math.inf
            if number == rank:
                g[64:128] = e[64:128] = 0.0
            g, e = g.to(where), e.to(where)
            p = torch.full_like(e, 7.0) if draft else e
            row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=where)
            residual = None if rank and not number else e
            self.members.append(
                rounded.Member(
                    rounded.RoundedBuffers(layout, rank, where), g, residual, p, row, g, undone=not draft
                )
            )
        self.group = rounded.RoundedGroup([one.buffers for one in self.members])


def _exchanged(ranks: list[_Rounded], counts: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    """What each bucket has after a step."""
    sent: list[Tensor] = []
    buffers = [[one.buffers for one in rank.members] for rank in ranks]
    for number, rank in enumerate(ranks):
        rounded.encode(rank.group, rank.members, (11 + number, 2**62 + number))
        sent += [part.clone() for one in rank.members for part in (one.buffers.message, one.p)]
    for number, rank in enumerate(ranks):
        for mine, *every in zip(buffers[number], *buffers, strict=True):
            if mine.layout.shards:
                mine.parts.copy_(torch.stack([one.message[number] for one in every]))
        if ranks[0].members[0].buffers.layout.shards:
            rounded.average(rank.group, rank.members, (5, 6))
    for number, rank in enumerate(ranks):
        for mine, *every in zip(buffers[number], *buffers, strict=True):
            rows = [one.mean if mine.layout.shards else one.message for one in every]
            mine.arrived.copy_(torch.cat(rows))
        rounded.decode(rank.group, rank.members, counts)
    return [
        (
            one.row.cpu(),
            tuple(part.cpu() for part in (*sent, one.g, one.p, one.buffers.lost, one.buffers.arrived)),
        )
        for rank in ranks
        for one in rank.members
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "every"), [(7, 1), (5000, 3)])
def test_signed_sums(dtype: torch.dtype, n: int, every: int) -> None:
    x = torch.randn(n).to(dtype)
    signs = torch.randint(0, 2, (16, -(-len(x[::every]) // 16))).float() * 2.0 - 1.0
    found = []
    for use, where in (("reference", torch.device("cpu")), ("cuda", HERE)):
        with on(use):
            sums = torch.ones(17, dtype=torch.float64, device=where)
            step_sums.signed(x.to(where), signs.to(where), every, sums)
            found.append(sums.cpu())
    assert torch.allclose(*found, rtol=1e-12)
    assert found[0][16] == pytest.approx(1.0 + every * float(x[::every].double().square().sum()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_step(dtype: torch.dtype) -> None:
    for bad in (None, math.inf):
        rows, vectors = [], []
        for use, where in (("reference", torch.device("cpu")), ("cuda", HERE)):
            with on(use):
                x = torch.linspace(-1.0, 1.0, 700).to(dtype)
                if bad:
                    x[3] = bad
                table = torch.zeros(3, step_sums.ROW, dtype=torch.float64, device=where)
                step_sums.square(x.to(where), table[1])
                table[2] = torch.tensor([4.0, 9.0, 2.0, 3.0, 1.0, 0.5], device=where)
                vector = torch.arange(13.0, dtype=torch.float64, device=where)
                vector[7:10] = 0.0
                step_sums.add_rows(table, vector, 11, 9)
                rows.append(table.cpu())
                vectors.append(vector.cpu())
        assert torch.allclose(*vectors, rtol=1e-12)
        assert vectors[0][7] == (1.0 if bad else 0.0)
        assert bool(bad) == (vectors[0][0] == 0.0)
        assert not rows[0].any()
        assert not rows[1].any()
