"""What the payloads of other ranks take of a GPU's memory: those of two buckets, however many a step has."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.streams.launches import SIZE, CountedRank, counted

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
RANKS, BUCKETS = 16, 6


class Alive(TorchDispatchMode):
    """Knows the memory of all tensors that were made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given, made = (
            {one.untyped_storage()._cdata: one for one in tree_leaves(some) if isinstance(one, Tensor)}
            for some in ((args, kwargs), found)
        )
        for key, one in made.items():
            if key not in given:
                storage = one.untyped_storage()
                self._made[key] = StorageWeakRef(storage), storage.nbytes()
        return found

    @property
    def bytes(self) -> int:
        """Of what is still there."""
        return sum(size for reference, size in self._made.values() if not reference.expired())


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CountedRank]]:
    with counted(monkeypatch) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("codec", "cf", "bits"), [("bf16", 2.0, 16), ("int8", 4.0, 8.125), ("nearest:levels=15", 7.5, 4.25)]
)
def test_payloads_of_two_buckets_are_held(
    counting: list[CountedRank], monkeypatch: pytest.MonkeyPatch, codec: str, cf: float, bits: float
) -> None:
    """At the end of backward, where the memory has a second buffer, as it has at so many ranks."""
    rank, alive, found = CountedRank(codec, cf, RANKS, buckets=BUCKETS), Alive(), list[int]()
    decide = rank.executor._decide

    def noted(*given: Any) -> None:
        found.append(alive.bytes)
        decide(*given)

    for _ in range(2):
        rank.step()
    monkeypatch.setattr(rank.executor, "_decide", noted)
    with alive:
        rank.step()
    arrived = RANKS * SIZE * bits / 8
    # Beside what arrived, each bucket's own payload is there twice: in parts, and as a message.
    assert 2.0 <= found[0] / arrived <= 2.0 * (1.0 + 2.5 / RANKS)
