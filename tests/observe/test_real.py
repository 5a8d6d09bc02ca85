"""Traces that others recorded on GPUs. They are not part of this project: see ``README.md`` beside them."""

from pathlib import Path

import pytest

from gravac_observe.findings.verdict import judge
from gravac_observe.measure import measure
from gravac_observe.measure.linking import link
from gravac_observe.traces import read
from gravac_observe.traces.intervals import Union

SHARED = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/traces is not here")
HOLISTIC = {
    "hta-ddp-2rank-a": (46_876.5, 15.61),
    "hta-ddp-2rank-many-small": (357_343, 0.0),
    "hta-16rank-alltoall": (163_138, 1.47),
    "tracelens-mi300-ddp-8rank": (47_200.3, 25.25),
}
"""Communication in microseconds, and per cent of it hidden, by Holistic Trace Analysis 0.5.0 with pandas 2.2.3.

``TraceAnalysis(trace_files={0: file}, include_last_profiler_step=True).get_comm_comp_overlap()``, 2026-11-26, with
``HTA_DISABLE_NS_ROUNDING=1``: else it shortens each kernel to whole microseconds, so that of 12 ms hidden on the MI300
it finds 10.6. By default it leaves out the last step. It always leaves out kernels whose launch is not in the trace.
"""


@pytest.mark.parametrize("name", HOLISTIC)
def test_exposed_time_is_that_of_holistic_trace_analysis(name: str) -> None:
    trace = read(SHARED / f"{name}.json.gz")
    link(trace)
    launched = set(trace.launches.correlations)
    computing = Union.of(
        (start, end)
        for spans in trace.kernels.values()
        for start, end, number in zip(spans.starts, spans.ends, spans.correlations, strict=True)
        if number in launched
    )
    sent = Union.of((call.start, call.end) for call in trace.calls if call.correlation in launched)
    hidden = sum(computing.within(start, end) for start, end in zip(sent.starts, sent.ends, strict=True))
    whole, percent = HOLISTIC[name]
    assert sent.length == pytest.approx(whole, rel=1e-4)
    assert sent.length - hidden == pytest.approx(whole * (1 - percent / 100), rel=0.001)


@pytest.mark.parametrize(
    ("name", "cause", "step", "exposed", "row"),
    [
        (
            "hta-ddp-2rank-a",
            "network or late ranks",
            222.4,
            13.19,
            ("gradients", "all-reduce", 2, 5, 102_228_128),
        ),
        (
            "hta-ddp-2rank-many-small",
            "small messages",
            347.6,
            71.47,
            ("gradients", "all-reduce", 2, 404, None),
        ),
        (
            "hta-16rank-alltoall",
            "network or late ranks",
            215.4,
            32.15,
            ("gradients", "all-reduce", 16, 2, 1_793_158_928),
        ),
        (
            "tracelens-mi300-ddp-8rank",
            "network or late ranks",
            18.84,
            11.76,
            ("gradients", "all-reduce", 8, 2, 23_379_024),
        ),
        ("tracelens-h100-single-gpu", "not recognized", 35.18, 0.0, None),
    ],
)
def test_the_verdict(
    name: str, cause: str, step: float, exposed: float, row: tuple[str, str, int, int, int | None] | None
) -> None:
    found = judge(measure([read(SHARED / f"{name}.json.gz")]))
    measured = found.measurement
    assert found.finding.kind == cause
    assert 1e3 * measured.step == pytest.approx(step, rel=0.001)
    assert 1e3 * measured.exposed == pytest.approx(exposed, rel=0.001)
    first = measured.rows[0] if measured.rows else None
    assert (first and (first.pattern, first.kind, first.size, round(first.calls), first.nbytes)) == row


def test_a_gpu_that_runs_behind_has_the_step_of_its_kernels() -> None:
    """ResNet-18 on the MI300: the host takes 16 ms a step, and its GPU 19; kernels of two steps before are there."""
    found = measure([read(SHARED / "tracelens-mi300-ddp-8rank.json.gz")])
    assert (found.steps, found.parameters) == (3, 11_689_512)
    assert found.gradients is not None
    assert (found.gradients.elements, found.gradients.itemsize) == (11_689_512, 2)
