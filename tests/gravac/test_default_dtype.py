"""What ``torch.set_default_dtype`` says changes no bit: codecs, aggregators and memories state every dtype."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from gravac.aggregators import AGGREGATORS
from gravac.memories import build
from tests.support.maths import aggregator_checks as checks
from tests.support.maths.backends import on
from tests.support.maths.members import texts, ways
from tests.support.maths.memory_steps import ALL, ONE, TWO, gradients, residuals, step

ROOT = Path(__file__).parent.parent.parent
MAKERS = {
    *("empty", "zeros", "ones", "full", "tensor", "as_tensor", "asarray", "scalar_tensor", "arange", "range"),
    *("linspace", "logspace", "eye", "rand", "randn", "normal", "empty_strided", "from_file", "hann_window"),
}
"""Functions of torch whose result has the default dtype, where they are told no other."""
OTHERS = (torch.float64, torch.bfloat16)
WAYS = ways("topk", "nearest:levels=7")


def unstated(path: Path) -> list[str]:
    """Calls that leave the dtype to the default."""
    return [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and call.func.attr in MAKERS
        and not {keyword.arg for keyword in call.keywords} & {"dtype", "out"}
    ]


def test_every_new_tensor_states_its_dtype() -> None:
    files = [path for room in ("gravac", "agent", "observe") for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 100
    assert [line for path in files for line in unstated(path)] == []


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def float32(rank: int, at: int, one: checks.Bucket) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * at + 10 * rank + one.number)
    return torch.randn(sum(one.numels), generator=generator, dtype=torch.float32)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("reference", marks=pytest.mark.long)])
def test_it_changes_no_bit_of_any_codec(backend: Literal["cpu", "reference"]) -> None:
    with on(backend):
        for text in (*texts(), *sorted(AGGREGATORS), *WAYS):
            found = []
            for dtype in (torch.float32, *OTHERS):
                torch.set_default_dtype(dtype)
                found.append(bits(checks.run(2, text, count=2, source=float32)))
            assert found[0] == found[1] == found[2], text


def bits(ranks: list[list[list[checks.Step]]]) -> list[tuple[object, ...]]:
    return [
        (
            bucket.mean.dtype,
            bucket.mean.view(torch.int32).tolist(),
            bucket.sent.view(torch.int32).tolist(),
            bucket.payload_bytes,
        )
        for steps in ranks
        for buckets in steps
        for bucket in buckets
    ]


@pytest.mark.parametrize("text", ALL)
def test_it_changes_no_bit_of_any_memory(text: str) -> None:
    found = []
    for dtype in (torch.float32, *OTHERS):
        torch.set_default_dtype(dtype)
        memory = build(text)
        for number, (layout, cf) in enumerate([(ONE, 5.0), (ONE, 5.0), (TWO, 5.0), (TWO, 1.0), (TWO, 5.0)]):
            step(memory, layout, gradients(number), number, cf=cf)
        found.append(
            {name: (residual.dtype, residual.tolist()) for name, residual in residuals(memory).items()}
        )
    assert found[0] == found[1] == found[2]
