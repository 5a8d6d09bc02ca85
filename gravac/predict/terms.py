"""Terms of the time model, fitted to samples: first encoding and decoding, then computing and the exchange."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gravac.collectives import Network
from gravac.predict import robust
from gravac.predict.robust import LinearFit
from gravac.predict.samples import ASSUMED_NETWORK, Sample
from gravac.predict.timemodel import CODING_POWER, TCP_GOODPUT, coded

COMPRESS_SECONDS_PER_ELEMENT = 2e-9
COMPRESS_SECONDS_PER_CODED = 1e-8
DECOMPRESS_SECONDS_PER_CODED = 4e-9
"""Defaults for coding: Top-k's kernels on one core of an AMD EPYC, 262,144 elements, CF 10 against CF 1000."""
HANDLING_SECONDS_PER_BYTE = 5e-10
"""Default for the work of a byte: gloo on one core of an AMD EPYC."""
HANDLING_SCALE = 2e-8
"""Prior of the fit: 1e-9 off the default counts as much as a step that is 5 % off."""
SLOWER_SCALE = 5.0
"""Prior of the fit: so does a link a quarter slower than its rate (losses, acknowledgements, slow starts)."""
LAST_RATIOS = tuple(share / 10 for share in range(1, 10))
BETWEEN = 0.05
"""The share of the last bucket is searched on a grid of 0.1, then halfway between."""
MIN_SIZES = 3
"""Different transfers needed to separate overlap from waiting; one more where the network is unknown."""
BETTER = 0.5
"""Overlap is assumed when it reduces the loss to this share. More terms always reduce it somewhat."""
BEYOND_NOISE, BEYOND_FORMULA = 3.0, 0.01
"""Standard errors, and share, by which some CF must be off without it, too: four terms fit any four points."""


@dataclass(frozen=True, slots=True)
class CodingTerms:
    """Terms of ``TimeModel`` by the same names. ``unknown``: what the samples do not determine."""

    compress_seconds: float
    compress_seconds_per_coded: float
    decompress_seconds_per_coded: float
    unknown: tuple[str, ...]


def coding_terms(samples: Sequence[Sample], elements: int) -> CodingTerms:
    """Fit compress = constant + coded · slope and decompress = payloads decoded · coded · slope. Needs two CFs.

    Args:
        samples: Samples, one for each CF.
        elements: Gradient elements.
    """
    known = [
        sample for sample in samples if sample.cf > 1.0 and sample.observation.compress_seconds is not None
    ]
    cfs = sorted({each.cf for each in known})
    if len(cfs) > 1:
        compress = _coding_line(
            known, elements, lambda each: each.observation.compress_seconds or 0.0, decoded=False
        )
        decompress = _coding_line(
            known, elements, lambda each: each.observation.decompress_seconds or 0.0, decoded=True
        )
        return CodingTerms(compress[0] + decompress[0], compress[1], decompress[1], ())
    if not known:
        constant = COMPRESS_SECONDS_PER_ELEMENT * elements
        assumed = (
            "encoding: no window was at one CF throughout, so Top-k's figures from another machine are used, "
            f"{constant * 1e3:.3g} ms and {COMPRESS_SECONDS_PER_CODED * 1e9:.3g} ns · elements / CF^{CODING_POWER:g}"
        )
        return CodingTerms(constant, COMPRESS_SECONDS_PER_CODED, DECOMPRESS_SECONDS_PER_CODED, (assumed,))
    seen, count = known[0].observation, coded(elements, cfs[0])
    slope = min(COMPRESS_SECONDS_PER_CODED, (seen.compress_seconds or 0.0) / count)
    decoding = (seen.decompress_seconds or 0.0) / (count * known[0].volume.decoded)
    assumed = (
        f"encoding by CF: only CF {cfs[0]:g} was sent; of its time {slope * 1e9:.3g} ns · elements / "
        f"CF^{CODING_POWER:g} is taken to depend on the CF, as measured elsewhere"
    )
    return CodingTerms((seen.compress_seconds or 0.0) - slope * count, slope, min(decoding, 1e-6), (assumed,))


def _coding_line(
    known: Sequence[Sample], elements: int, seconds: Callable[[Sample], float], decoded: bool
) -> tuple[float, ...]:
    rows = [(1.0, coded(elements, each.cf) * (each.volume.decoded if decoded else 1)) for each in known]
    scale = [max(each.observation.seconds, 1e-9) for each in known]
    return robust.fit(rows, [seconds(each) for each in known], scale, [each.weight for each in known]).terms


@dataclass(frozen=True, slots=True)
class ExchangeTerms:
    """Terms of ``TimeModel`` by the same names.

    Attributes:
        network: The network it was fitted on, the first of several.
        unknown: What the samples do not determine.
    """

    compute_seconds: float
    waiting_seconds: float
    goodput_ratio: float
    handling_seconds_per_byte: float
    last_ratio: float
    hidden_seconds: float
    network: Network
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Remainder:
    """A sample without its coding.

    Attributes:
        rest: Seconds of the step without coding.
        exposed: Seconds of that waiting for the network.
        scale: Seconds that a relative error refers to.
        weight: Weight in the fit.
        certain: Seconds of the transfer that follow from a known network.
        wire: Seconds of that for its bytes; 0 on an unknown network.
        link_bytes: Bytes on a rank's link.
        coding: Seconds of encoding, during which transfers of earlier buckets can hide.
        known: Whether the network is known.
    """

    rest: float
    exposed: float
    scale: float
    weight: float
    certain: float
    wire: float
    link_bytes: float
    coding: float
    known: bool

    @classmethod
    def of(cls, sample: Sample, coding: CodingTerms, elements: int) -> "_Remainder":
        seen, network = sample.observation, sample.network or sample.assumed
        wire = sample.volume.link_bytes / (TCP_GOODPUT * network.bytes_per_second)
        wire = 0.0 if sample.network is None else wire
        count = coded(elements, sample.cf)
        compress = coding.compress_seconds + count * coding.compress_seconds_per_coded if count else 0.0
        decompress = count * sample.volume.decoded * coding.decompress_seconds_per_coded
        if count and seen.compress_seconds is not None and seen.decompress_seconds is not None:
            compress, decompress = seen.compress_seconds, seen.decompress_seconds
        rest = max(0.0, seen.seconds - compress - decompress)
        return cls(
            rest=rest,
            exposed=min(seen.exposed_seconds, rest),
            scale=max(seen.seconds, 1e-9),
            weight=sample.weight,
            certain=sample.volume.messages * network.latency_seconds + wire + sample.volume.inside_seconds,
            wire=wire,
            link_bytes=sample.volume.link_bytes,
            coding=compress,
            known=sample.network is not None,
        )


def exchange_terms(
    samples: Sequence[Sample], coding: CodingTerms, elements: int, noise: float
) -> ExchangeTerms:
    """Fit rest = compute + waiting + max(last · T, T − hidden), T the transfer time (``gravac.predict.timemodel``).

    Without overlap two different transfers suffice. A single one is determined by what the step waited for.

    Args:
        samples: Samples, one for each CF and network.
        coding: Coding terms, fitted before.
        elements: Gradient elements.
        noise: Relative standard error of a sample.
    """
    known = samples[0].network
    remainders = sorted(
        (_Remainder.of(sample, coding, elements) for sample in samples),
        key=lambda each: (each.certain, each.link_bytes),
    )
    sizes = {round(remainder.certain + 1e-9 * remainder.link_bytes, 7) for remainder in remainders}
    needed = MIN_SIZES + (known is None)
    unknown: list[str] = []
    last, hidden, slower = 1.0, 0.0, 0.0
    if len(sizes) == 1:
        base, byte, hidden = _single(remainders, known is not None)
        last = 0.0 if hidden else 1.0
        unknown.append(
            "transfer: all steps sent the same amount, so all waiting for the network counts as transfer; a trace "
            "with several CFs, dense among them, separates it from waiting for slower ranks"
        )
    else:
        line = _fit(remainders, 1.0, len(remainders))
        if len(sizes) >= needed and _worst(remainders, line) > BEYOND_NOISE * noise + BEYOND_FORMULA:
            overlapping = _overlapping(remainders)
            if overlapping is not None and overlapping[0].loss < BETTER * line.loss:
                line, last = overlapping
        base, byte, hidden, slower = line.terms
    if len(sizes) < needed:
        unknown.append(
            "overlap: how much of a transfer hides behind backward; only what must hide is taken to hide. A trace "
            f"with {needed} CFs determines it"
        )
    compute = min(base, median(remainder.rest - remainder.exposed for remainder in remainders))
    network = known
    if network is None:
        network, assumed = _fitted_network(byte, samples[0].assumed)
        byte = HANDLING_SECONDS_PER_BYTE
        unknown.append(assumed)
    goodput = TCP_GOODPUT / (1 + slower)
    return ExchangeTerms(compute, base - compute, goodput, byte, last, hidden, network, tuple(unknown))


def _fitted_network(seconds_per_byte: float, assumed: Network) -> tuple[Network, str]:
    """Return the network that a fit implies, and the sentence that says how it was found."""
    wire = max(seconds_per_byte - HANDLING_SECONDS_PER_BYTE, HANDLING_SECONDS_PER_BYTE)
    network = replace(assumed, bytes_per_second=1 / (TCP_GOODPUT * wire))
    rate = f"{8e-6 * network.bytes_per_second:.3g} Mbit/s"
    latency = f"{1e6 * network.latency_seconds:g} µs a message"
    work = f"{1e9 * HANDLING_SECONDS_PER_BYTE:g} ns of work a byte"
    if assumed is ASSUMED_NETWORK:
        known, usual = "the trace does not say on which it was recorded; ", f"with {latency} and {work}"
    else:
        known, usual = "", f"with {latency}, as measured at the start, and {work}"
    if seconds_per_byte < 2 * HANDLING_SECONDS_PER_BYTE:
        found = f"step times hardly depend on the bytes sent, so it counts as {rate}, {usual}"
    else:
        found = f"{rate} fits the steps, {usual}"
    return network, f"network: {known}{found}"


def _single(remainders: Sequence[_Remainder], known: bool) -> tuple[float, float, float]:
    """Return base, seconds a byte and hidden seconds for one size of transfer."""
    base = median(remainder.rest - remainder.exposed for remainder in remainders)
    over = median(remainder.exposed - remainder.certain for remainder in remainders)
    nbytes = remainders[0].link_bytes
    if over < 0:  # less than the wire alone takes: the rest must have been hidden
        return base, 0.0, -over
    return (base + over, 0.0, 0.0) if known else (base, over / nbytes if nbytes else 0.0, 0.0)


def _fit(remainders: Sequence[_Remainder], last: float, large_from: int) -> LinearFit:
    """Fit base, seconds a byte, hidden seconds, and how much slower than its rate a link is.

    Transfers from place ``large_from`` on are taken to exceed what can hide.
    """
    rows, values = [], []
    for place, each in enumerate(remainders):
        large = place >= large_from
        share = 1.0 if large else last
        rows.append((1.0, share * each.link_bytes, -float(large), share * each.wire))
        values.append(each.rest - share * each.certain + (1 - last) * each.coding * large)
    scale, weights = (
        [remainder.scale for remainder in remainders],
        [remainder.weight for remainder in remainders],
    )
    if remainders[0].known:  # priors: cores are alike, and so, less closely, are links of one rate
        rows += [(0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)]
        values += [HANDLING_SECONDS_PER_BYTE, 0.0]
        scale += [HANDLING_SCALE, SLOWER_SCALE]
        weights += [max(weights)] * 2
    return robust.fit(rows, values, scale, weights)


def _worst(remainders: Sequence[_Remainder], line: LinearFit) -> float:
    """Return the largest relative error of a step without overlap."""
    base, byte, _, slower = line.terms
    return max(
        abs(remainder.rest - base - remainder.certain - slower * remainder.wire - byte * remainder.link_bytes)
        / remainder.scale
        for remainder in remainders
    )


def _overlapping(remainders: Sequence[_Remainder]) -> tuple[LinearFit, float] | None:
    """Return the best fit over all shares of the last bucket and all places from which transfers exceed hiding."""
    best: tuple[LinearFit, float] | None = None
    cuts = [
        at
        for at in range(1, len(remainders) + 1)
        if at == len(remainders) or remainders[at].link_bytes > remainders[at - 1].link_bytes
    ]
    for ratios in (LAST_RATIOS, (-BETWEEN, BETWEEN)):
        around = 0.0 if best is None or ratios is LAST_RATIOS else best[1]
        for last in (around + ratio for ratio in ratios):
            for cut in cuts:
                line = _fit(remainders, last, cut)
                if line.terms[2] <= line.terms[0] and (best is None or line.loss < best[0].loss):
                    best = line, last
    return best
