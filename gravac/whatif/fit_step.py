"""Computing and the exchange, from whole steps less their coding: what does not go with the bytes, and what does."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gravac.collectives import Network
from gravac.whatif import robust
from gravac.whatif.fit_coding import Coding
from gravac.whatif.robust import Line
from gravac.whatif.timemodel import TCP_GOODPUT, coded

if TYPE_CHECKING:
    from gravac.whatif.fit import Sample

ASSUMED = Network(latency_seconds=5e-5, bytes_per_second=1.25e8)
"""Of a network that nobody named: by its latency, and to guess which collective was chosen; its bandwidth is fitted."""
HANDLING_SECONDS_PER_BYTE = 5e-10
"""Of gloo on one core of an AMD EPYC, where the network's own time cannot be told from it."""
HANDLING_SCALE = 2e-8
"""To be 1e-9 off that counts as much as a step that is 5 % off."""
SLOWER_SCALE = 5.0
"""And a link a quarter slower than its rate, for losses, acknowledgements and slow starts."""
LAST_RATIOS = tuple(share / 10 for share in range(1, 10))
BETWEEN = 0.05
LEAST_SIZES = 3
"""Different transfers needed to tell what hides from what everybody waits for; one more on a network not known."""
BETTER = 0.5
"""Overlap is believed in when it brings the loss to this share: more terms always bring it down somewhat."""
BEYOND_NOISE, BEYOND_FORMULA = 3.0, 0.01
"""And when without it some CF is off by more than three standard errors of its median and 1 %: four terms go through
any four points."""


@dataclass(frozen=True, slots=True)
class Stepping:
    """Terms of ``TimeModel`` by the same names; ``network``: the one it was fitted on, the first of several."""

    compute_seconds: float
    waiting_seconds: float
    goodput_ratio: float
    handling_seconds_per_byte: float
    last_ratio: float
    hidden_seconds: float
    network: Network
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Told:
    """A sample. ``rest``: the step without coding. ``certain``: seconds of the transfer that follow from a network that
    is ``known``, ``wire`` of them for its bytes. ``coding``: seconds of encoding, behind which transfers of earlier
    buckets hide."""

    rest: float
    exposed: float
    size: float
    weight: float
    certain: float
    wire: float
    link_bytes: float
    coding: float
    known: bool

    @classmethod
    def of(cls, sample: "Sample", coding: Coding, elements: int) -> "_Told":
        seen, network = sample.seen, sample.network or ASSUMED
        wire = sample.volume.link_bytes / (TCP_GOODPUT * network.bytes_per_second)
        wire = 0.0 if sample.network is None else wire
        count = coded(elements, seen.cf)
        compress = coding.compress_seconds + count * coding.compress_seconds_per_coded if count else 0.0
        decompress = count * sample.volume.decoded * coding.decompress_seconds_per_coded
        if count and seen.compress_seconds is not None and seen.decompress_seconds is not None:
            compress, decompress = seen.compress_seconds, seen.decompress_seconds
        rest = max(0.0, seen.seconds - compress - decompress)
        return cls(
            rest=rest,
            exposed=min(seen.exposed_seconds, rest),
            size=max(seen.seconds, 1e-9),
            weight=sample.weight,
            certain=sample.volume.messages * network.latency_seconds + wire,
            wire=wire,
            link_bytes=sample.volume.link_bytes,
            coding=compress,
            known=sample.network is not None,
        )


def fit(samples: Sequence["Sample"], coding: Coding, elements: int, noise: float) -> Stepping:
    """Rest = compute + waiting + max(last · T, T - hidden). Without overlap two different transfers are enough; one
    alone is told by what the step waited for. ``noise``: standard error of a sample, relative."""
    known = samples[0].network
    told = sorted(
        (_Told.of(each, coding, elements) for each in samples),
        key=lambda each: (each.certain, each.link_bytes),
    )
    sizes = {round(each.certain + 1e-9 * each.link_bytes, 7) for each in told}
    least = LEAST_SIZES + (known is None)
    unknown: list[str] = []
    last, hidden, slower = 1.0, 0.0, 0.0
    if len(sizes) == 1:
        base, byte, hidden = _single(told, known is not None)
        last = 0.0 if hidden else 1.0
        unknown.append(
            "transfer: all steps sent as much, so all that they waited for the network counts as transfer; a trace "
            "with several CFs, dense among them, tells it from waiting for slower ranks"
        )
    else:
        line = _fit(told, 1.0, len(told))
        if len(sizes) >= least and _worst(told, line) > BEYOND_NOISE * noise + BEYOND_FORMULA:
            overlapping = _overlapping(told)
            if overlapping is not None and overlapping[0].loss < BETTER * line.loss:
                line, last = overlapping
        base, byte, hidden, slower = line.terms
    if len(sizes) < least:
        unknown.append(
            "overlap: how much of a transfer hides behind backward; more than must is not taken to hide. A trace with "
            f"{least} CFs tells it"
        )
    compute = min(base, median(each.rest - each.exposed for each in told))
    network = known
    if network is None:
        network, said = _fitted(byte)
        byte = HANDLING_SECONDS_PER_BYTE
        unknown.append(said)
    goodput = TCP_GOODPUT / (1 + slower)
    return Stepping(compute, base - compute, goodput, byte, last, hidden, network, tuple(unknown))


def _fitted(seconds_per_byte: float) -> tuple[Network, str]:
    """The network that a fit shows, and what must be said of it."""
    wire = max(seconds_per_byte - HANDLING_SECONDS_PER_BYTE, HANDLING_SECONDS_PER_BYTE)
    network = Network(latency_seconds=ASSUMED.latency_seconds, bytes_per_second=1 / (TCP_GOODPUT * wire))
    rate = f"{8e-6 * network.bytes_per_second:.3g} Mbit/s"
    delay, work = 1e6 * ASSUMED.latency_seconds, 1e9 * HANDLING_SECONDS_PER_BYTE
    usual = f"with {delay:g} µs a message and {work:g} ns of work a byte"
    if seconds_per_byte < 2 * HANDLING_SECONDS_PER_BYTE:
        said = f"steps hardly go with the bytes they send, so it counts as {rate}, {usual}"
    else:
        said = f"{rate} fits, {usual}"
    return network, f"network: the trace does not say on which it was recorded; {said}"


def _single(told: Sequence[_Told], known: bool) -> tuple[float, float, float]:
    """Base, seconds a byte and hidden seconds, of one size of transfer."""
    base = median(each.rest - each.exposed for each in told)
    over = median(each.exposed - each.certain for each in told)
    nbytes = told[0].link_bytes
    if over < 0:  # less than the wire alone takes: that much must have hidden
        return base, 0.0, -over
    return (base + over, 0.0, 0.0) if known else (base, over / nbytes if nbytes else 0.0, 0.0)


def _fit(told: Sequence[_Told], last: float, large_from: int) -> Line:
    """Terms (base, seconds a byte, hidden, how much slower than its rate a link is); transfers from place
    ``large_from`` on are more than what can hide."""
    rows, values = [], []
    for place, each in enumerate(told):
        large = place >= large_from
        share = 1.0 if large else last
        rows.append((1.0, share * each.link_bytes, -float(large), share * each.wire))
        values.append(each.rest - share * each.certain + (1 - last) * each.coding * large)
    size, weights = [each.size for each in told], [each.weight for each in told]
    if told[
        0
    ].known:  # what is not the wire's is a core's work, and cores are alike; so are links of a rate, less so
        rows += [(0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)]
        values += [HANDLING_SECONDS_PER_BYTE, 0.0]
        size += [HANDLING_SCALE, SLOWER_SCALE]
        weights += [max(weights)] * 2
    return robust.fit(rows, values, size, weights)


def _worst(told: Sequence[_Told], line: Line) -> float:
    """The largest relative error of a step without overlap."""
    base, byte, _, slower = line.terms
    return max(
        abs(each.rest - base - each.certain - slower * each.wire - byte * each.link_bytes) / each.size
        for each in told
    )


def _overlapping(told: Sequence[_Told]) -> tuple[Line, float] | None:
    """The best of all shares of the last bucket and all places where transfers become more than can hide."""
    best: tuple[Line, float] | None = None
    cuts = [
        at
        for at in range(1, len(told) + 1)
        if at == len(told) or told[at].link_bytes > told[at - 1].link_bytes
    ]
    for ratios in (LAST_RATIOS, (-BETWEEN, BETWEEN)):
        around = 0.0 if best is None or ratios is LAST_RATIOS else best[1]
        for last in (around + ratio for ratio in ratios):
            for cut in cuts:
                line = _fit(told, last, cut)
                if line.terms[2] <= line.terms[0] and (best is None or line.loss < best[0].loss):
                    best = line, last
    return best
