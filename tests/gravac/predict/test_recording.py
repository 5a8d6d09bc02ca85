"""Recordings of odd and of long traces."""

import json
import math
import re
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.predict import NothingRecorded, Recording
from gravac.predict.recording import MAX_WINDOWS_PER_CF
from gravac.protocol import LinkSpec, ModelShape, WindowReport
from gravac.traces import Line, TraceRecord
from gravac.traces.line import kind_of
from gravac_controller.cli.whatif.answer import Unanswerable, WhatIfQuestion, answer
from tests.support.predicted import CFS, HOSTS, NETWORK, recording, spec, windows


def lines(*records: TraceRecord) -> list[Line]:
    return [Line(number, kind_of(record), 0.0, record, "", "") for number, record in enumerate(records)]


def test_steps_that_failed_or_were_not_finite_do_not_count() -> None:
    held = Recording(spec())
    for number, report in enumerate(windows(cfs=(1.0, 10.0))):
        held.add(report.model_copy(update={"failed_steps": number % 2, "nonfinite_steps": number % 3 == 0}))
    assert held.windows == 12
    assert len(held.observations) == 4


def test_dense_steps_that_were_compressed_in_vain_do_not_count_as_dense() -> None:
    """The gate sent them dense after encoding: the window has gains of CFs that were measured."""
    held = Recording(spec())
    for report in windows(cfs=(1.0,)):
        gains = ({"cf": 10.0, "gain": 0.1},)
        held.add(
            WindowReport.model_validate_json(json.dumps(report.model_dump(mode="json") | {"gains": gains}))
        )
    assert held.observations == []


def test_the_noise_of_the_gradient_is_that_of_all_windows_that_show_it() -> None:
    held = Recording(spec())
    assert held.confirmed is None
    for report, (steps, square, product) in zip(
        windows(cfs=(10.0,)), ((50, 1.0, 0.1), (19, 1.0, 0.9), (50, 3.0, 0.7)), strict=False
    ):
        (level,) = report.levels
        shown = {"progress_steps": steps, "raw_mean_sq": square, "raw_dot_next": product}
        sums = level.sums.model_copy(update=shown)
        held.add(report.model_copy(update={"levels": (level.model_copy(update={"sums": sums}),)}))
    assert held.confirmed == pytest.approx(0.2), "a window with few steps next to dense shows nothing"


def moved(reports: Iterable[WindowReport], waits: float) -> Iterator[WindowReport]:
    """Yield reports whose steps wait so many times as long for the network."""
    for report in reports:
        (level,) = report.levels
        step, exposed = level.step_seconds_median, level.exposed_seconds_median
        assert step is not None
        assert exposed is not None
        longer = {
            "step_seconds_median": step + (waits - 1) * exposed,
            "exposed_seconds_median": waits * exposed,
        }
        yield report.model_copy(update={"levels": (level.model_copy(update=longer),)})


def test_a_network_that_changed_is_said() -> None:
    """The fit is one of both networks, so nothing it says is of either."""
    six = list(windows(cfs=(1.0,)))
    later = [report.model_copy(update={"window": report.window + 6}) for report in moved(six, 3.0)]
    assert Recording.from_trace(lines(spec(), *six, *moved(six, 1.2))).notes == []
    (said,) = Recording.from_trace(lines(spec(), *six, *later)).notes
    assert re.fullmatch(
        r"the network changed while this was recorded: up to window 5 steps with dense waited \d+ ms for it, then "
        r"\d\.\d+ s; what is predicted is between the two",
        said,
    )
    (said,) = Recording.from_trace(lines(spec(), *later, *six)).notes
    assert "the network changed" in said, "also where it became faster"
    assert Recording.from_trace(lines(spec(), *six, later[0])).notes == [], "one window may be an accident"


def test_a_restart_on_another_link_begins_again() -> None:
    one, two = list(windows(cfs=(1.0,))), list(windows(cfs=(10.0,)))
    slow, fast = (LinkSpec(bits_per_second=rate) for rate in (1e8, 1e9))
    found = Recording.from_trace(lines(spec(link=slow), *one, spec(link=fast), *two))
    assert (found.windows, found.spec.link) == (6, fast)
    assert found.notes == ["6 windows on a link of 100 Mbit/s before the last restart are left out"]


def test_a_restart_with_other_ranks_begins_again() -> None:
    one, two = list(windows(cfs=(1.0,))), list(windows(cfs=(10.0,)))
    found = Recording.from_trace(lines(spec(), *one, spec(), *two))
    assert (found.windows, sorted(found.by_cf)) == (12, [1.0, 10.0])
    found = Recording.from_trace(lines(spec(), *one, spec(world_size=8), *two))
    assert (found.windows, sorted(found.by_cf), found.ranks) == (6, [10.0], 8)
    assert found.notes == ["6 windows of 4 ranks before the last restart are left out"]


def test_a_restart_with_other_levels_of_links_begins_again() -> None:
    """Its ranks exchange something else. The same levels whose links were measured again go on."""
    one, two = list(windows(cfs=(1.0,))), list(windows(cfs=(10.0,)))
    whole, levels = spec(world_size=12), spec(world_size=12, hosts=HOSTS)
    again = HOSTS.model_copy(update={"between_latency_seconds": 2e-4})
    found = Recording.from_trace(lines(levels, *one, spec(world_size=12, hosts=again), *two))
    assert (found.windows, found.spec.hosts) == (12, again)
    for before, after, was in (
        (whole, levels, "with whole gradients"),
        (levels, whole, "with gradients divided among 4"),
    ):
        found = Recording.from_trace(lines(before, *one, after, *two))
        assert (found.windows, found.spec) == (6, after)
        assert found.notes == [f"6 windows of 12 ranks {was} before the last restart are left out"]


def test_a_long_trace_is_held_in_bounds() -> None:
    held = recording(cfs=(100.0,), each=MAX_WINDOWS_PER_CF + 50)
    assert held.windows == MAX_WINDOWS_PER_CF + 50
    plan = "topk", 100.0
    assert [len(held.by_cf[100.0]), len(held.gains[plan]), len(held.curves[plan])] == [MAX_WINDOWS_PER_CF] * 3
    assert held.observations[-1].window == MAX_WINDOWS_PER_CF + 49


def test_a_trace_without_usable_windows_is_refused() -> None:
    with pytest.raises(NothingRecorded, match="0 windows"):
        Recording.from_trace([])
    with pytest.raises(NothingRecorded, match="no trained elements"):
        Recording.from_trace(
            lines(spec(model=ModelShape(name="Net", tensors=0, elements=0)), *windows(cfs=(1.0,)))
        )


def test_windows_of_one_step_count_together() -> None:
    """`auto` has them until it decides, which is after the end of a short job."""
    short = []
    for report in windows(cfs=(1.0,), each=4):
        (level,) = report.levels
        level = level.model_copy(update={"steps": 1, "settled_steps": 1})
        short.append(
            report.model_copy(
                update={"first_step": report.window, "last_step": report.window, "levels": (level,)}
            )
        )
    assert len(Recording.from_trace(lines(spec(), *short[:3])).observations) == 3
    with pytest.raises(NothingRecorded, match="none of its 2 windows has 3 settled steps at one CF"):
        Recording.from_trace(lines(spec(), *short[:2]))


ODD = st.sampled_from([0.0, 5e-324, 1e-9, 1.0, 1e9])


@given(
    st.lists(st.tuples(ODD, ODD, ODD, st.sampled_from([1, 3, 2**40])), min_size=1, max_size=4), st.booleans()
)
def test_any_recording_is_answered_in_finite_numbers(
    odd: list[tuple[float, float, float, int]], known: bool
) -> None:
    """Or refused with a reason."""
    reports = []
    for number, (seconds, exposed, phase, nbytes) in enumerate(odd):
        (report,) = windows(cfs=(CFS[number],), each=1)
        level = report.levels[0].model_copy(
            update={
                "step_seconds_median": seconds,
                "exposed_seconds_median": exposed,
                "payload_bytes": nbytes,
            }
        )
        phases = report.phases.model_copy(update={"compress": phase, "decompress": phase})
        reports.append(report.model_copy(update={"window": number, "levels": (level,), "phases": phases}))
    question = WhatIfQuestion(
        link=([1e6, 1e12], None),
        ranks=[1, 3000],
        recorded_on=(8 * NETWORK.bytes_per_second, None) if known else None,
        policy="static:cf=10",
    )
    try:
        found = answer(lines(spec(), *reports), "made", question)
    except Unanswerable:
        return
    json.dumps(found, allow_nan=False)
    for scenario in found["scenarios"]:
        assert all(
            math.isfinite(row["step_seconds"]) and row["step_seconds"] > 0 for row in scenario["factors"]
        )
