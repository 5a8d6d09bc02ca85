"""Findings: one rule for the verdict on a step, by policy observe as by traces, and its page."""

from dataclasses import replace

import pytest

from gravac.findings import BANDS, KINDS, Finding, StepParts, diagnose, severity

PARTS = StepParts(
    step=1.0, exposed=0.4, waiting=0.0, losses={"computation": 0.5, "data loader": 0.02, "encoding": 0.05}
)


def found(**changes: object) -> Finding:
    return diagnose(replace(PARTS, **changes), lambda: "send less", lambda: "find the late rank")


@pytest.mark.parametrize(
    ("share", "band"),
    [
        (0.0, "none"),
        (0.049, "none"),
        (0.05, "low"),
        (0.1, "raised"),
        (0.199, "raised"),
        (0.2, "high"),
        (1, "high"),
    ],
)
def test_severity_has_bands(share: float, band: str) -> None:
    assert severity(share) == band
    finding = found(exposed=float(share), waiting=0.0)
    assert finding.severity == band
    assert (finding.kind == "other") == (band == "none")
    assert list(BANDS.values()) == [0.05, 0.1, 0.2]


@pytest.mark.parametrize(
    ("waiting", "kind", "action"),
    [
        (0.0, "network", "send less"),
        (0.07, "network", "send less"),
        (0.09, "several causes", "send less"),
        (0.31, "several causes", "find the late rank"),
        (0.33, "late ranks", "find the late rank"),
        (None, "network or late ranks", "send less"),
    ],
)
def test_a_cause_is_named_where_it_covers_most_of_the_time(
    waiting: float | None, kind: str, action: str
) -> None:
    """And what is not known is no zero."""
    finding = found(waiting=waiting)
    assert (finding.kind, finding.action) == (kind, action)


def test_a_rule_abstains_where_nothing_shows_what_it_is_about() -> None:
    finding = found(exposed=None, waiting=None)
    assert (finding.kind, finding.severity) == ("not recognized", "unknown")
    assert finding.sentence == (
        "No verdict on the network: no communication was recognized in the recorded steps."
    )
    assert "exposed" not in " ".join(finding.lines), "no share is claimed"
    assert found(exposed=None, alone=True).sentence == "Not the network: nothing is communicated."
    assert found(apart=4).sentence == "No gradient is exchanged: 4 ranks train apart in the recorded steps."


def test_small_shares_may_be_off() -> None:
    assert found(exposed=0.07).kind == "network"
    assert found(exposed=0.07, unsure=0.03).kind == "other"


def test_data_comes_first_where_a_step_waits_longer_for_it() -> None:
    finding = found(losses={"computation": 0.1, "data loader": 0.5})
    assert (finding.kind, finding.severity) == ("data first", "high")
    assert "give the loader more workers" in finding.action
    assert found(exposed=0.0, losses={"computation": 0.95, "encoding": 0.05}).action.startswith(
        "speed up computation, 95 % of a step"
    ), "encoding is nothing that a user could do something about"


def test_many_small_messages_are_named_with_their_evidence() -> None:
    finding = found(small="404 all-reduces a step", levels={"between machines": 0.3, "inside a machine": 0.1})
    assert finding.kind == "small messages"
    assert finding.why.startswith("404 all-reduces a step; of a step, ")
    assert finding.sentence.endswith(
        ", in many small messages: 300 ms between machines, 100 ms inside a machine."
    )
    assert found(small="404", waiting=0.3).kind == "several causes"


def test_the_level_that_waits_longer_is_named() -> None:
    levels = {"between machines": 0.1, "inside a machine": 0.3}
    assert found(levels=levels).kind == "network inside a machine"
    assert found(levels=dict(zip(levels, (0.3, 0.1), strict=True))).kind == "network between machines"


def test_lines_and_records_say_the_same() -> None:
    finding = found(evidence=("two ranks",))
    assert finding.lines == (
        "Network: 40 % of a step is exposed communication (400 ms of 1 s).",
        "Why: two ranks; of a step, computation 50 %, data loader 2 %, encoding 5 %.",
        "Next: send less.",
    )
    assert finding.record() == {
        "kind": "network",
        "severity": "high",
        "verdict": finding.lines[0],
        "why": finding.why,
        "next": "send less",
    }
    assert Finding(kind="all sent", severity="none", evidence=("Everything is sent",)).lines == (
        "Everything is sent.",
    )
    assert all(kind.condition.endswith(".") for kind in KINDS.values())
