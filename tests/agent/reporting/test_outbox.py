"""The queue of records: bounded, and a record leaves by identity."""

from gravac.policies import StaticPolicy
from gravac.protocol import End, Event, WindowReport
from gravac_agent.reporting.outbox import Outbox
from tools.harness.cluster import Cluster

DECISION = StaticPolicy(cf=10).start().decision
EVENT = Event(kind="note", window=None, message="same text")


def windows(count: int) -> list[WindowReport]:
    return [Cluster().report(number, DECISION) for number in range(count)]


def left(outbox: Outbox) -> list[object]:
    found = []
    while (record := outbox.next()) is not None:
        found.append(record)
        outbox.remove(record)
    return found


def test_the_window_in_flight_is_never_dropped() -> None:
    """gravac 0.1 dropped the head while it was in flight, and then removed the next record, unsent."""
    first, second, third, fourth = windows(4)
    outbox = Outbox(max_windows=2)
    outbox.add(first)
    outbox.add(second)
    assert outbox.next() is first
    outbox.add(third)  # one too many: the oldest that is not in flight is dropped
    outbox.remove(first)
    assert (outbox.windows, outbox.dropped_windows) == (1, 1)
    outbox.add(fourth)
    assert left(outbox) == [third, fourth]
    assert len(outbox) == outbox.windows == 0
    assert outbox.losses() == "1 windows that were dropped"


def test_equal_records_are_distinguished() -> None:
    one, other = EVENT.model_copy(), EVENT.model_copy()
    outbox = Outbox()
    outbox.add(one)
    outbox.add(other)
    outbox.remove(other)
    assert outbox.next() is one
    outbox.remove(other)
    assert len(outbox) == 1


def test_events_are_bounded_apart_from_windows_and_the_end_always_fits() -> None:
    outbox = Outbox(max_windows=3, max_events=3)
    reports, notes = windows(5), [EVENT.model_copy(update={"window": number}) for number in range(5)]
    for report, note in zip(reports, notes, strict=True):
        outbox.add(report)
        outbox.add(note)
    end = End(incarnation="first", windows=5, steps=250, message="finished")
    outbox.add(end)
    assert (outbox.dropped_windows, outbox.dropped_events, outbox.first_window()) == (2, 2, 2)
    assert left(outbox) == [reports[2], notes[2], reports[3], notes[3], reports[4], notes[4], end]


def test_what_is_dropped_is_counted_by_kind_and_once() -> None:
    (window,), end = windows(1), End(incarnation="first", windows=1, steps=50, message="finished")
    outbox = Outbox()
    for record in (window, EVENT, end):
        outbox.add(record)
    outbox.drop(EVENT)
    assert (outbox.dropped_windows, outbox.dropped_events, len(outbox)) == (0, 1, 2)
    outbox.drop(EVENT)  # it is not in the queue any more
    outbox.drop(window)
    outbox.drop(end)
    assert (outbox.dropped_windows, outbox.dropped_events, len(outbox), outbox.windows) == (1, 2, 0, 0)
    assert outbox.losses() == "1 windows that were dropped, 2 events"
