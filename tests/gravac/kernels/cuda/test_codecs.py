"""Codecs and a whole step by Triton's kernels: the same bytes, and nothing that the host waits for."""

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors import Key, build
from gravac.kernels import backend
from tests.support.maths.backends import on, vector
from tests.support.maths.triton_device import GPU, HERE, SMALL, Place, alike, module


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
