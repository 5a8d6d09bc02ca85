"""Which collective: named by the user, or the quickest by the cost model."""

from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

from gravac.collectives.all_reduce import AllReduce
from gravac.collectives.base import Collective, Workload
from gravac.collectives.communicator import ALONE, Communicator
from gravac.collectives.compressed_all_reduce import CompressedAllReduce, is_coarse
from gravac.collectives.cost import Network
from gravac.collectives.gather import Gather
from gravac.collectives.messages import split_codec
from gravac.collectives.owners import Owners
from gravac.collectives.shared import SharedSupport
from gravac.compressors import Compressor
from gravac.registry import Registry, split

COLLECTIVES: Registry[Collective] = Registry(
    "collective", (Gather, AllReduce, CompressedAllReduce, Owners, SharedSupport), base=Collective
)
"""Names in order of preference: of equally quick ones, the cost model takes the first. Plugins cannot add any."""
AUTO = "auto"
HANDICAP = 2.0
"""Factor on the time of collectives that ``keeps_up`` excepts. At the same CF their steps advance training less
(docs/collectives.md has the measurements), while the rest of a step takes as long."""
GATHERED_RANKS = 4
"""Up to this many ranks, nothing is chosen that is not ``sends_all``: efficiencies were simulated with that many ranks,
gathered, and a stronger CF saves more than another collective (docs/collectives.md)."""
OWNERS_CF = 25.0
"""Largest CF at which steps by ``owners`` keep up with gathered ones where the optimizer ages. Measured with 4 to 32
ranks: η 0.93 to 1.36 at 5.1 and 16.6, and 0.86 to 1.00 of a GPT at 36 (docs/collectives.md)."""
_MOST_SIZES = 8
"""Most bucket sizes that a note lists per collective."""


class Choice(NamedTuple):
    """The chosen collective and the predicted seconds of each candidate."""

    name: str
    predicted: dict[str, float]


def keeps_up(kind: type[Collective], cf: float, aged: bool) -> bool:
    """Return whether steps by a collective advance training as much as gathered ones at the same CF.

    Those that send all do. Those by ``owners`` do up to ``OWNERS_CF`` where the optimizer steps by how much of an
    element arrived, while under SGD they lose twice as much (docs/collectives.md).

    Args:
        kind: The collective.
        cf: The CF.
        aged: Whether every optimizer is of ``gravac.optim``, with a usual β₁.
    """
    return kind.sends_all or (kind is Owners and aged and cf <= OWNERS_CF)


def choose(network: Network, workload: Workload, aged: bool = False) -> Choice:
    """Choose the collective that is quickest on a network, with ``HANDICAP`` counted; the first of equals.

    Up to ``GATHERED_RANKS`` it is one that sends all, and for elements with coarse values one that ``keeps_up``.

    Equal arguments give equal choices, so ranks need not agree on the result.

    Args:
        network: The network, equal on all ranks.
        workload: The payloads.
        aged: Whether every optimizer is of ``gravac.optim``, with a usual β₁.
    """
    fitting = {name: kind for name, kind in COLLECTIVES.items() if kind.fits(workload.codec)}
    if is_coarse(workload):
        fitting.pop(CompressedAllReduce.name, None)
    # Sizes follow from the workload, so no group is needed to predict times.
    predicted = {name: kind(ALONE).seconds(network, workload) for name, kind in fitting.items()}

    def weighed(name: str) -> float:
        return predicted[name] * (1.0 if keeps_up(fitting[name], workload.cf, aged) else HANDICAP)

    codecs = split_codec(workload.codec)
    coarse = codecs is not None and is_coarse(workload._replace(codec=codecs[1], cf=1.0))
    few = workload.ranks <= GATHERED_RANKS

    def allowed(kind: type[Collective]) -> bool:
        return kind.sends_all or not (few or (coarse and not keeps_up(kind, workload.cf, aged)))

    return Choice(min((name for name in predicted if allowed(fitting[name])), key=weighed), predicted)


def parse_collective(text: str) -> Callable[[dist.ProcessGroup | Communicator], Collective] | None:
    """Parse the name and settings of a collective, such as ``shared:leader=largest``.

    Args:
        text: ``auto``, ``name`` or ``name:setting=value``.

    Returns:
        A function that makes the collective on a group; None for ``auto``.

    Raises:
        ValueError: The name or a setting is unknown, or a value is not allowed.
    """
    name, settings = split(text, "collective")
    if name == AUTO and not settings:
        return None
    if name not in COLLECTIVES:
        raise COLLECTIVES.unknown(text, AUTO)
    COLLECTIVES.build(text, ALONE)  # raises now what is wrong
    return lambda group: COLLECTIVES.build(text, group)


def check(text: str, codec: Compressor) -> None:
    """Raise ValueError if a codec's payloads cannot be exchanged this way. Linear codecs are all-reduced anyway."""
    name, _ = split(text, "collective")
    if parse_collective(text) is None or codec.traits.linear or COLLECTIVES[name].fits(codec):
        return
    able = ", ".join(other for other, kind in COLLECTIVES.items() if kind.fits(codec))
    raise ValueError(
        f"collective={text!r} needs {COLLECTIVES[name].needs}, which compressor={codec.name!r} is not: choose {able} "
        "or auto"
    )


def _with_sizes(names: dict[int, str]) -> str:
    """Return a text with each collective and the bucket sizes that it was chosen for; ``names`` are by elements."""
    by_name: dict[str, list[str]] = {}
    for numel, name in names.items():
        by_name.setdefault(name, []).append(f"{numel:,}")
    return "; ".join(
        f"{name} for {' and '.join(listed[:_MOST_SIZES])} elements"
        + (" and more sizes" if len(listed) > _MOST_SIZES else "")
        for name, listed in by_name.items()
    )


class CollectiveChooser:
    """Chooses and makes the collectives of one codec on one group.

    Args:
        group: The ranks.
        text: Name and settings of a collective, or ``auto`` for the cost model.
        network: The network, equal on all ranks so that they choose alike; None to gather.
        aged: See ``choose``; equal on all ranks.
    """

    def __init__(
        self, group: Communicator, text: str, network: Network | None = None, aged: bool = False
    ) -> None:
        self.text = text
        self._group, self._network, self._aged = group, network, aged
        self._made: dict[str, Collective] = {}
        self._unreported: dict[float, dict[int, str]] = {}  # CF: elements: name

    def choose(self, workload: Workload) -> Collective:
        """Return the collective for these payloads. The caller keeps it: the cost model is asked each time."""
        # Values of linear codecs add up, and nothing moves fewer bytes than one all-reduce of them.
        if workload.codec.traits.linear:
            return self._named(AllReduce.name)
        if self.text != AUTO:
            return self._named(self.text)
        if self._network is None or workload.ranks <= 2:  # between two ranks, nothing moves fewer bytes
            return self._named(Gather.name)
        name = choose(self._network, workload, self._aged).name
        self._unreported.setdefault(workload.cf, {})[workload.numel] = name
        return self._named(name)

    def use(self, network: Network) -> None:
        """Choose again for this network; see ``choose``."""
        self._network = network

    @property
    def sync_free(self) -> bool:
        """Whether no collective that may be used for a codec of fixed size reads anything from a device."""
        return self.text == AUTO or self._named(self.text).sync_free

    @property
    def sends_all(self) -> bool:
        """Whether all collectives that were used so far are ``sends_all``."""
        return all(made.sends_all for made in self._made.values())

    def notes(self) -> list[str]:
        """Return a sentence for each CF about what the cost model chose since the last call."""
        unreported, self._unreported = self._unreported, {}
        return [
            f"Collectives at CF {cf:g} for {self._network}: {_with_sizes(names)}."
            for cf, names in unreported.items()
        ]

    def _named(self, text: str) -> Collective:
        if text not in self._made:
            self._made[text] = COLLECTIVES.build(text, self._group)
        return self._made[text]
