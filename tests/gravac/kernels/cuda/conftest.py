"""Triton's kernels against plain torch, to the bit: on a GPU where there is one, else in Triton's interpreter.

``test_cuda.py`` starts a process with the interpreter; where there is neither, nothing here is collected.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.support.maths.triton_device import GPU, SMALL, module, prepare

collect_ignore_glob = [] if GPU or "TRITON_INTERPRET" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
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
