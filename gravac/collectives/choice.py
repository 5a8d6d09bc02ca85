"""Which collective: named by the user, or the quickest by the cost model."""

from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

from gravac.collectives.all_reduce import AllReduce
from gravac.collectives.base import Collective, Load
from gravac.collectives.communicator import ALONE, Communicator
from gravac.collectives.cost import Network
from gravac.collectives.gather import Gather
from gravac.collectives.reduce_scatter import ReduceScatter
from gravac.collectives.shared import SharedSupport
from gravac.compressors import Compressor
from gravac.registry import Registry, split

COLLECTIVES: Registry[Collective] = Registry(
    "collective", (Gather, AllReduce, ReduceScatter, SharedSupport), base=Collective
)
"""In order of preference: of equally quick ones the cost model takes the first. Plugins cannot add any."""
AUTO = "auto"
HANDICAP = 2.0
"""Ways that are not whole count as taking this many times as long: at the same CF their steps bring training less far
(docs/collectives.md has what was measured), and the rest of a step takes as long as ever."""
_TOLD = 8
"""Sizes of buckets that a note names for each."""


class Choice(NamedTuple):
    """A collective by name, and what each that could be taken would need, in seconds."""

    name: str
    predicted: dict[str, float]


def choose(network: Network, load: Load) -> Choice:
    """The quickest on that network, with the handicap; of equals the first. Equal arguments, equal choice."""
    fitting = {name: kind for name, kind in COLLECTIVES.items() if kind.fits(load.codec)}
    predicted = {name: kind(ALONE).seconds(network, load) for name, kind in fitting.items()}

    def weighed(name: str) -> float:
        return predicted[name] * (1.0 if fitting[name].whole else HANDICAP)

    return Choice(min(predicted, key=weighed), predicted)


def known(text: str) -> Callable[[dist.ProcessGroup | Communicator], Collective] | None:
    """What makes the collective that ``text`` names, ``shared:leader=largest`` say; None for ``auto``.

    Raises ValueError naming what is known.
    """
    name, settings = split(text, "collective")
    if name == AUTO and not settings:
        return None
    if name not in COLLECTIVES:
        raise COLLECTIVES.unknown(text, AUTO)
    COLLECTIVES.build(text, ALONE)  # raises now what is wrong
    return lambda group: COLLECTIVES.build(text, group)


def check(text: str, codec: Compressor) -> None:
    """Raises ValueError when that codec's payloads cannot meet this way. Linear codecs are all-reduced anyway."""
    name, _ = split(text, "collective")
    if known(text) is None or codec.traits.linear or COLLECTIVES[name].fits(codec):
        return
    able = ", ".join(other for other, kind in COLLECTIVES.items() if kind.fits(codec))
    raise ValueError(
        f"collective={text!r} needs a selector that sends a fixed number of elements, such as topk, which "
        f"compressor={codec.name!r} is not: choose {able} or auto"
    )


def _told(sizes: dict[int, str]) -> str:
    """Names and the elements of the buckets that they are for."""
    by_name: dict[str, list[str]] = {}
    for numel, name in sizes.items():
        by_name.setdefault(name, []).append(f"{numel:,}")
    return "; ".join(
        f"{name} for {' and '.join(listed[:_TOLD])} elements"
        + (" and more sizes" if len(listed) > _TOLD else "")
        for name, listed in by_name.items()
    )


class Ways:
    """The collectives of one codec on one group, by ``text`` or, for ``auto``, by the cost model.

    ``network``: equal on all ranks, then they choose alike; None: gather.
    """

    def __init__(self, group: Communicator, text: str, network: Network | None = None) -> None:
        self.text = text
        self._group, self._network = group, network
        self._made: dict[str, Collective] = {}
        self._chosen: dict[Load, str] = {}
        self._unsaid: dict[float, dict[int, str]] = {}  # CF: elements: name

    def of(self, load: Load) -> Collective:
        """How these payloads meet."""
        if load.codec.traits.linear:
            return self._named(AllReduce.name)
        if self.text != AUTO:
            return self._named(self.text)
        if self._network is None or load.ranks <= 2:  # between two, nothing moves less
            return self._named(Gather.name)
        if load not in self._chosen:
            if len(self._chosen) > 4096:  # regrouped buckets of a very long run
                self._chosen.clear()
            name = self._chosen[load] = choose(self._network, load).name
            self._unsaid.setdefault(load.cf, {})[load.numel] = name
        return self._named(self._chosen[load])

    def use(self, network: Network) -> None:
        """Choose anew, by this one."""
        self._network = network
        self._chosen.clear()

    @property
    def whole(self) -> bool:
        """Whether all that were used so far are."""
        return all(made.whole for made in self._made.values())

    def notes(self) -> list[str]:
        """What the cost model chose since this was last asked, a sentence for each CF."""
        unsaid, self._unsaid = self._unsaid, {}
        return [
            f"Collectives at CF {cf:g} for {self._network}: {_told(sizes)}." for cf, sizes in unsaid.items()
        ]

    def _named(self, text: str) -> Collective:
        if text not in self._made:
            make = known(text)
            assert make is not None
            self._made[text] = make(self._group)
        return self._made[text]
