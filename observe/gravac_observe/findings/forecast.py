"""What steps of a profiled job would take with other plans, ranks and networks. It needs torch, for sizes.

A step is that of the traces, but for the exchange of gradients, which follows the formula of
``gravac.predict.timemodel``. Its terms are such that the recorded exchange takes what it took.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import hypot, log2, sqrt
from typing import Any

from gravac.collectives import AUTO, COLLECTIVES, Network, keeps_up
from gravac.collectives.compressed_all_reduce import COARSE
from gravac.predict.advice import AGED, Advice, PlanOption, advise, usual_plans
from gravac.predict.exchange import VALUE_BYTES, UnknownSizes, Volume, volume, volume_of_shards
from gravac.predict.nominal import HIDDEN_RATIO, LAST_RATIO, LATENCY_SECONDS, PUBLISHED, NominalJob, link
from gravac.predict.predictor import DOUBLING_ERROR, ELSEWHERE_ERROR, MIN_ERROR
from gravac.predict.terms import HANDLING_SECONDS_PER_BYTE
from gravac.predict.timemodel import TCP_GOODPUT, StepTime, TimeModel
from gravac.protocol.job import decisive, optimizer_kind
from gravac.signals.efficiency import UNSIMULATED
from gravac.wording import format_number, format_percent, format_rate, format_seconds
from gravac_observe.measure.measurement import Gradients, Measurement, Row, link_bytes
from gravac_observe.measure.patterns import BUFFERS, GRADIENTS, OPTIMIZER, REPLICAS, WEIGHTS

GPU = PUBLISHED["h100"]
"""GPU that stands for those of which nothing is known."""
GPU_LATENCY_SECONDS = 1.4e-5
"""Latency of a message between hosts with GPUs: what NCCL's tuning.cc takes for a step of a ring. [s; chosen]"""
MOST_ELEMENTS = 10**13
"""Elements of a gradient at most. More is a damaged trace. [1; chosen]"""
SPREAD_OUT = (GRADIENTS, REPLICAS, WEIGHTS, BUFFERS, OPTIMIZER)
"""What all ranks of data parallelism exchange. The rest stays within its group, on its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about a job. What is not given is as in the traces.

    Attributes:
        bits_per_second: Nominal bandwidth of each rank's link.
        latency: Seconds of a message between two ranks, on that link.
        ranks: Ranks that exchange gradients.
        elements: Parameters of the model.
        kind: Kind of the optimizer: sgd, adam, sign, other, unknown.
        bound: Largest loss of statistical efficiency that is accepted.
    """

    bits_per_second: float | None = None
    latency: float | None = None
    ranks: int | None = None
    elements: int | None = None
    kind: str | None = None
    bound: float = 0.02

    @property
    def elsewhere(self) -> bool:
        """Whether it asks about another network, or other ranks, than that of the traces."""
        return not (self.bits_per_second is self.ranks is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a step would take.

    Attributes:
        ranks: Ranks that exchange gradients.
        bits_per_second: Rate of a rank's link: as given, or as the traces achieve.
        latency: Seconds of a message.
        dense: Seconds of a step without compression.
        exposed: Part of that which waits for the network.
        error: Two relative standard errors of a step.
        collective: Collective that the advised plan takes; empty: the one that the agent chooses by itself.
        advice: Plans, and the one that is advised.
        assumed: What it takes for granted, in a sentence each.
    """

    ranks: int
    bits_per_second: float
    latency: float
    dense: float
    exposed: float
    error: float
    collective: str
    advice: Advice
    assumed: tuple[str, ...]

    @property
    def chosen(self) -> PlanOption:
        return self.advice.chosen

    def record(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "ranks": self.ranks,
            "bits_per_second": self.bits_per_second,
            "latency_seconds": self.latency,
            "step_seconds": self.dense,
            "exposed_seconds": self.exposed,
            "error": self.error,
            "chosen": self.chosen.label,
            "collective": self.collective or None,
            "rows": [option.record() for option in self.advice.options],
        }


class CannotSay(Exception):
    """What is missing for a forecast."""


def forecast(measured: Measurement, question: Question) -> Forecast:
    """Predict the steps of a job.

    Raises:
        CannotSay: the traces and the question do not determine them.
    """
    found, assumed = measured.gradients, list[str]()
    if measured.wrapper == "agent":
        raise CannotSay("gravac.Agent compresses already; ask its journal with gravac whatif")
    elements = question.elements or (found and found.elements) or measured.parameters
    if not elements:
        raise CannotSay("the traces do not show the size of the gradient; give it with --elements")
    if max(elements, (found and found.elements) or 0) > MOST_ELEMENTS:
        raise CannotSay("the traces show a larger gradient than any model has: they are damaged")
    if question.elements is None and found is None and "parameters" not in measured.lanes[0].trace.about:
        assumed.append(f"each step has one backward, so the model has {elements:,} parameters (--elements)")
    own = None if found is None else found.size or measured.world
    ranks = question.ranks or own
    if not ranks or ranks < 2:
        raise CannotSay("no gradients are exchanged; give --ranks and --link")
    calls = max(1, round(found.calls)) if found and found.sharded else 0
    itemsize = (found and found.itemsize) or VALUE_BYTES
    aged = question.kind == AGED if question.kind else _optimizer(measured)[2]
    exchange = _Exchange(elements, itemsize, ranks, calls, measured.gpu, aged)
    network = None
    if found is not None and own and own > 1 and found.seconds > 0.0:
        network = _fitted(found, replace(exchange, elements=found.elements or elements, ranks=own))
    if question.bits_per_second is not None:
        usual = GPU_LATENCY_SECONDS if measured.gpu else LATENCY_SECONDS
        latency = usual if question.latency is None else question.latency
        network = link(question.bits_per_second, latency)
        assumed.append(
            f"{format_percent(TCP_GOODPUT)} of {format_rate(question.bits_per_second)} is payload, and a message takes "
            f"{format_seconds(latency)} (--link)"
        )
    if network is None:
        raise CannotSay("the traces show no exchange of gradients on a network; give --link")
    return _Model(measured, question, exchange, network, assumed).forecast()


def _fitted(found: Gradients, exchange: "_Exchange") -> Network:
    """Return the network on which the model's dense exchange takes as long as in the traces."""
    dense = exchange.volume("dense", 1.0, link(1e9))
    usual = GPU_LATENCY_SECONDS if exchange.gpu else LATENCY_SECONDS
    latency = usual if found.fastest is None else found.fastest / (2 * (exchange.ranks - 1))
    latency = min(latency, 0.5 * found.seconds / max(1.0, dense.messages))
    return Network(
        latency_seconds=latency,
        bytes_per_second=dense.link_bytes / (found.seconds - dense.messages * latency),
    )


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The exchange of gradients."""

    elements: int  # of the gradient
    itemsize: int  # bytes of an element without compression
    ranks: int  # that take part
    calls: int  # reduce-scatters of a step, where the gradient is sharded; 0: it is not
    gpu: bool  # whether it is on GPUs
    aged: bool  # whether every optimizer is of gravac.optim, as JobSpec.aged

    def volume(self, codec: str, cf: float, network: Network, collective: str = AUTO) -> Volume:
        """Return the exchange of a step. Raises UnknownSizes."""
        if self.calls:
            try:
                found = volume_of_shards(codec, self.elements, cf, self.ranks, self.calls, not self.gpu)
            except ValueError as error:
                raise UnknownSizes(str(error)) from None
        else:
            found = volume(codec, self.elements, cf, self.ranks, network, collective, self.aged)
        scale = self.itemsize / VALUE_BYTES if cf == 1.0 else 1.0
        return replace(found, link_bytes=found.link_bytes * scale, payload_bytes=found.payload_bytes * scale)

    def ways(self, cf: float) -> Iterator[str]:
        """Yield the collectives that a plan may take. The agent's own choice counts with the speed of a CPU core."""
        yield AUTO
        if self.gpu and cf > 1.0 and not self.calls:
            for name, kind in COLLECTIVES.items():
                coarse = name == "compressed-all-reduce" and cf > COARSE
                if kind.sync_free and keeps_up(kind, cf, self.aged) and not coarse:
                    yield name


@dataclass
class _Model:
    """Predicts steps of the job in question, and collects what that takes for granted."""

    measured: Measurement
    question: Question
    exchange: _Exchange
    network: Network
    assumed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._others = sum(self._other(row) for row in self.measured.rows if row.pattern != GRADIENTS)
        self._terms = self._of_traces()

    def _of_traces(self) -> TimeModel:
        """Return the time model, without coding."""
        measured, found = self.measured, self.measured.gradients
        if found is None:
            last, hidden, exposed = LAST_RATIO, HIDDEN_RATIO * measured.computing, 0.0
            self.assumed.append(
                f"a transfer hides behind {format_percent(HIDDEN_RATIO)} of the computation, but for the last "
                f"{format_percent(LAST_RATIO)} of it, as no exchange was recorded"
            )
        else:
            exposed = found.exposed
            alone = exposed / found.seconds if found.seconds > 0.0 else 1.0
            bound = found.seconds > found.capacity
            hidden = found.seconds - exposed if bound else found.capacity
            last = min(found.last, alone) if bound else alone
        others = sum(row.exposed for row in measured.rows if row.pattern != GRADIENTS)
        given = self.question.bits_per_second is not None
        return TimeModel(
            elements=self.exchange.elements,
            compute_seconds=max(0.0, measured.step - exposed - others),
            compress_seconds=0.0,
            compress_seconds_per_coded=0.0,
            decompress_seconds_per_coded=0.0,
            waiting_seconds=self._others,
            goodput_ratio=TCP_GOODPUT if given else 1.0,
            handling_seconds_per_byte=HANDLING_SECONDS_PER_BYTE if given and not measured.gpu else 0.0,
            last_ratio=last,
            hidden_seconds=hidden,
        )

    def _other(self, row: Row) -> float:
        """Return the exposed seconds of what is no gradient, in the question's place."""
        if not self.question.elsewhere or row.pattern not in SPREAD_OUT or not row.nbytes or not row.size:
            return row.exposed
        before, after = (link_bytes(row.kind, row.nbytes, size) for size in (row.size, self.exchange.ranks))
        if not before or after is None:
            return row.exposed
        if self.question.bits_per_second is None:
            return max(0.0, row.seconds * after / before - row.hidden)
        transfer = after / (TCP_GOODPUT * self.network.bytes_per_second)
        transfer += row.calls * (self.exchange.ranks - 1) * self.network.latency_seconds
        return max(0.0, transfer - row.hidden)

    def _fastest(
        self, codec: str, cf: float, hidden: float | None = None, exchange: _Exchange | None = None
    ) -> tuple[tuple[StepTime, float], str]:
        """Return the time of a step and its payload bytes by the quickest collective, and that. Raises UnknownSizes."""
        terms = self._terms if hidden is None else replace(self._terms, hidden_seconds=hidden)
        best: tuple[tuple[StepTime, float], str] | None = None
        exchange = exchange or self.exchange
        for way in exchange.ways(cf):
            exchanged = exchange.volume(codec, cf, self.network, way)
            compress, decompress = (0.0, 0.0) if cf == 1.0 else self._coding(codec, cf, exchanged)
            step = replace(terms, compress_seconds=compress).step(cf, exchanged, self.network)
            step = replace(step, decompress=decompress)
            if best is None or step.seconds < best[0][0].seconds:
                best = (step, exchanged.payload_bytes), way
        assert best is not None
        return best

    def _coding(self, codec: str, cf: float, exchanged: Volume) -> tuple[float, float]:
        """Return the seconds to encode and to decode a gradient."""
        elements, calls = self.exchange.elements, self.exchange.calls or None
        job = NominalJob(elements, self.exchange.ranks, self._terms.compute_seconds)
        nominal = job.step(codec, cf, self.network, exchange=exchanged)
        speed = self._codec_bytes()
        if nominal.compress <= 0.0 or (speed is None and not self.measured.gpu):
            return nominal.compress, nominal.decompress
        compress = VALUE_BYTES * elements / speed if speed else GPU.seconds(elements, calls)
        return compress, compress * nominal.decompress / nominal.compress

    def _codec_bytes(self) -> float | None:
        """Return the bytes of gradients encoded a second; None: not known of this job."""
        seconds = self.measured.encoding
        return None if seconds <= 0.0 else VALUE_BYTES * self.exchange.elements / seconds

    def forecast(self) -> Forecast:
        """Return what steps would take, and the advice."""
        its_kind, beta, _ = _optimizer(self.measured)
        kind = self.question.kind or its_kind
        if not self.question.kind:
            named = self.measured.optimizer or "the unknown optimizer"
            self.assumed.append(
                f"no optimizer like {named} was simulated (--optimizer)"
                if kind in UNSIMULATED
                else f"{named} loses as much by compression as simulations show for {kind} (--optimizer)"
            )
        self.assumed.append(self._codec_words())

        def steps(codec: str, cf: float, rule: str) -> tuple[StepTime, float]:
            exchange = self.exchange if rule == kind else replace(self.exchange, aged=rule == AGED)
            return self._fastest(codec, cf, exchange=exchange)[0]

        advice = advise(
            usual_plans(kind=kind),
            steps,
            kind,
            self.question.bound,
            ranks=self.exchange.ranks,
            optimizer=self.measured.optimizer or "",
            beta=beta,
        )
        dense, chosen = advice.options[0].step, advice.chosen
        way = self._fastest(chosen.codec, chosen.cf)[1]
        return Forecast(
            ranks=self.exchange.ranks,
            bits_per_second=8 * self.network.bytes_per_second,
            latency=self.network.latency_seconds,
            dense=dense.seconds,
            exposed=dense.exposed,
            error=self._error(chosen),
            collective="" if way == AUTO else way,
            advice=advice,
            assumed=tuple(self.assumed),
        )

    def _error(self, chosen: PlanOption) -> float:
        """Return two relative standard errors of a step."""
        measured, step, found = self.measured, chosen.step, self.measured.gradients
        elsewhere = ELSEWHERE_ERROR * step.exposed / step.seconds if self.question.bits_per_second else 0.0
        more = overlap = 0.0
        if found is not None and found.size:
            more = DOUBLING_ERROR * abs(log2(self.exchange.ranks / found.size))
        if found is None:  # from no overlap to twice that which is usual
            for hidden in (0.0, 2 * HIDDEN_RATIO * measured.computing):
                (other, _), _ = self._fastest(chosen.codec, chosen.cf, hidden)
                overlap = max(overlap, abs(other.seconds / step.seconds - 1) / 2)
        return 2 * hypot(MIN_ERROR, measured.spread / sqrt(measured.steps), elsewhere, more, overlap)

    def _codec_words(self) -> str:
        speed = self._codec_bytes()
        if speed is None:
            return GPU.words if self.measured.gpu else "codecs encode as fast as on one core of an AMD EPYC"
        return f"codecs encode {format_number(speed / 1e9)} GB/s, as gravac's kernels in the traces"


def _optimizer(measured: Measurement) -> tuple[str, float | None, bool]:
    """Return kind and β₁ of the optimizer that plans are chosen for, and whether all age, as ``JobSpec.aged``."""
    if not measured.optimizer and not measured.lanes[0].trace.optimizers:
        return "unknown", None, False
    found = measured.lanes[0].trace.optimizers or [((measured.optimizer,), None, 1)]
    kinds = [(optimizer_kind(names, beta), parameters) for names, beta, parameters in found]
    place = decisive(kinds)
    return kinds[place][0], found[place][1], {kind for kind, _ in kinds} == {"adam-aged"}
