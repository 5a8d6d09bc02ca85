"""Traces made from a known time model, with noise, to compare a fit with the truth."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

from gravac.collectives import Network
from gravac.fold import JobFold
from gravac.policies import parse
from gravac.predict.exchange import Volume, volume
from gravac.predict.recording import Recording
from gravac.predict.timemodel import TCP_GOODPUT, StepTime, TimeModel
from gravac.protocol import (
    GainCurve,
    HostLinks,
    JobSpec,
    LinkSpec,
    ModelShape,
    NetworkSpec,
    OptimizerSpec,
    PhaseSeconds,
    WindowReport,
)
from gravac.protocol.job import OptimizerKind
from gravac.signals.spectrum import LADDER
from tests.support.traces_made import write
from tools.harness.cluster import job_spec, level_sums, window_report

ELEMENTS, STEPS, RANKS, SAMPLES = 4_000_000, 20, 4, 32
"""``SAMPLES``: of a step, all ranks."""
TRUTH = TimeModel(
    elements=ELEMENTS,
    compute_seconds=0.120,
    compress_seconds=0.008,
    compress_seconds_per_coded=2e-8,
    decompress_seconds_per_coded=1e-8,
    waiting_seconds=0.005,
    handling_seconds_per_byte=8e-10,
    last_ratio=0.25,
    hidden_seconds=0.060,
)
NETWORK = Network(latency_seconds=1e-4, bytes_per_second=25e6)
CFS = (1.0, 10.0, 30.0, 100.0, 1000.0)
HOSTS = HostLinks(
    hosts=3,
    ranks=4,
    inside_latency_seconds=5e-5,
    inside_bytes_per_second=4e8,
    between_latency_seconds=NETWORK.latency_seconds,
    between_bytes_per_second=TCP_GOODPUT * NETWORK.bytes_per_second,
)
"""Two levels of links, the outer one of them ``NETWORK``."""
KEPT = 0.35
"""The gain of the simulated codec is CF ** -KEPT, independent of the residual."""


def spec(**changes: object) -> JobSpec:
    given: dict[str, object] = {
        "world_size": RANKS,
        "window_steps": STEPS,
        "model": ModelShape(name="Net", tensors=4, elements=ELEMENTS),
    }
    return job_spec(parse("gravac").spec(), **(given | changes))


def true_gain(cf: float) -> float:
    return float(cf**-KEPT)


def true_volume(cf: float, network: Network, ranks: int, hosts: HostLinks | None = None) -> Volume:
    """Return the exchange of a step; with ``hosts``, of ``ranks`` hosts."""
    return volume("topk", ELEMENTS // (1 if hosts is None else hosts.ranks), cf, ranks, network)


def true_step(
    cf: float, network: Network, ranks: int, truth: TimeModel = TRUTH, hosts: HostLinks | None = None
) -> StepTime:
    """Return the time of a step; with ``hosts``, of ``ranks`` hosts whose ranks first divide the gradient."""
    exchanged = true_volume(cf, network, ranks, hosts)
    if hosts is not None:
        rounds = 2 * (hosts.ranks - 1)
        sent = rounds / hosts.ranks * 4 * ELEMENTS / hosts.inside_bytes_per_second
        inside = rounds * hosts.inside_latency_seconds + sent
        exchanged = replace(exchanged, messages=exchanged.messages + inside / network.latency_seconds)
        truth = replace(truth, elements=ELEMENTS // hosts.ranks)
    return truth.step(cf, exchanged, network)


def windows(
    cfs: Sequence[float] = CFS,
    each: int = 6,
    noise: float = 0.0,
    truth: TimeModel = TRUTH,
    network: Network = NETWORK,
    ranks: int = RANKS,
    curve: bool = True,
    hosts: HostLinks | None = None,
) -> Iterator[WindowReport]:
    """``each`` windows of every CF; ``noise``: standard deviation of a window's times, relative.

    With ``hosts``, ``ranks`` is that of hosts.
    """
    random, number = Random(7), 0
    for cf in cfs:
        exchanged = true_volume(cf, network, ranks, hosts)
        step = true_step(cf, network, ranks, truth, hosts)
        world = ranks * (1 if hosts is None else hosts.ranks)
        for _ in range(each):
            off = max(0.1, random.gauss(1.0, noise))
            yield _window(
                number, cf, [part * off for part in _parts(step)], exchanged.payload_bytes, world, curve
            )
            number += 1


def _parts(step: object) -> list[float]:
    return [getattr(step, name) for name in ("compute", "compress", "exposed", "decompress")]


def _window(
    number: int, cf: float, parts: list[float], payload: float, ranks: int, curve: bool
) -> WindowReport:
    seconds, share = sum(parts), true_gain(cf)
    level = level_sums(0, cf, STEPS, STEPS - 5, seconds, parts[2])
    energy = float(STEPS)
    sums = level.sums.model_copy(
        update={
            "compensated_sq": energy,
            "sent_sq": energy * share,
            "minimum_sq": energy * share,
            "candidate_sq": energy * share,
        }
    )
    level = level.model_copy(update={"payload_bytes": int(payload * STEPS * ranks), "sums": sums})
    compute, compress, communicate, decompress = (STEPS * part for part in parts)
    gains = tuple(min(1.0, true_gain(at)) for at in LADDER)
    return window_report(
        window=number,
        first_step=number * STEPS,
        last_step=(number + 1) * STEPS - 1,
        cf=cf,
        seconds=STEPS * seconds,
        samples=SAMPLES * STEPS,
        levels=(level,),
        phases=PhaseSeconds(
            data_wait=0.0, compute=compute, compress=compress, communicate=communicate, decompress=decompress
        ),
        curve=GainCurve(steps=3, own=True, gains=gains) if curve else None,
    )


def recording(measured: Network | None = None, **options: object) -> Recording:
    """Return the recording of such windows; ``measured``: network at the start, with a link's nominal rate."""
    found = Recording(_spec(options))
    if measured is not None:
        known = asdict(measured) | {"bytes_per_second": TCP_GOODPUT * measured.bytes_per_second}
        found.spec = found.spec.model_copy(update={"network": NetworkSpec(**known)})
    for report in windows(**options):  # type: ignore[arg-type]
        found.add(report)
    return found


def job_trace(
    path: Path,
    kind: OptimizerKind = "adam",
    beta: float = 0.9,
    cfs: Sequence[float] = (1.0, 10.0),
    **changes: object,
) -> Path:
    """Write them as the journal of a job of AdamW on a link of 40 Mbit/s, with decisions."""
    adamw = OptimizerSpec(name="AdamW", kind=kind, learning_rate=0.001, momentum=beta, weight_decay=0.0)
    network = replace(NETWORK, bytes_per_second=5e6)
    quick = replace(TRUTH, compress_seconds_per_coded=2e-9, decompress_seconds_per_coded=1e-9)
    link = LinkSpec(bits_per_second=8 * network.bytes_per_second, latency_seconds=network.latency_seconds)
    policy = parse("static:cf=10").spec()
    fold = JobFold(spec(optimizer=adamw, link=link).model_copy(update={"policy": policy, **changes}))
    made = windows(cfs, each=3, truth=quick, network=network)
    reports = (report.model_copy(update={"job": fold.spec.job}) for report in made)
    pieces = [(report, fold.decide(report)) for report in reports]
    write(path, [(fold.spec, fold.start_decision), *pieces])
    return path


def trace(path: Path, **options: object) -> Path:
    """Write them as a trace without decisions."""
    write(path, [(_spec(options),), *((window,) for window in windows(**options))])  # type: ignore[arg-type]
    return path


def _spec(options: dict[str, object]) -> JobSpec:
    hosts, ranks = options.get("hosts"), options.get("ranks", RANKS)
    if isinstance(hosts, HostLinks):
        return spec(world_size=hosts.hosts * hosts.ranks, hosts=hosts)
    return spec(world_size=ranks)
