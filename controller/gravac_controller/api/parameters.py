"""Parameters of the routes: what is allowed, and a sentence each for the documentation."""

from typing import Annotated

from fastapi import Header, Path, Query

from gravac import proof
from gravac.protocol import Phase, Rule
from gravac_controller.jobs import cursor
from gravac_controller.views.models import LiveState

MOST = 2**53

JOB_NAME = "[A-Za-z0-9._-]{1,64}"
"""A job's name in a path, as a pattern."""

JobName = Annotated[str, Path(pattern=f"^{JOB_NAME}$", description="Name of the job.", examples=["my-job"])]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items on the page.")]
After = Annotated[
    str | None,
    Query(
        pattern=cursor.PATTERN,
        description="Where the page begins: the `next` of the page before. A number alone is a window: what came "
        "after it.",
        examples=["120"],
    ),
]
AfterName = Annotated[
    str | None, Query(max_length=64, description="Only names after this one: the `next` of the page before.")
]
FromStep = Annotated[
    int | None, Query(ge=0, le=MOST, description="Only windows that hold this step or a later one.")
]
ToStep = Annotated[
    int | None, Query(ge=0, le=MOST, description="Only windows that hold this step or an earlier one.")
]
Epoch = Annotated[int | None, Query(ge=0, le=MOST, description="Only those of this decision epoch.")]
OfPhase = Annotated[Phase | None, Query(alias="phase", description="Only those in this phase.")]
OfRule = Annotated[Rule | None, Query(alias="rule", description="Only decisions made by this rule.")]
Changed = Annotated[
    bool | None,
    Query(description="true: only decisions that began an epoch; false: only those that confirmed one."),
]
WithRanks = Annotated[
    bool,
    Query(alias="ranks", description="false: leave the rows of the ranks out, which are most of wide jobs."),
]
Challenge = Annotated[
    str,
    Query(
        pattern=proof.CHALLENGE_PATTERN,
        description="32 random bytes as hexadecimal digits.",
        examples=["5f" * 32],
    ),
]
OfState = Annotated[LiveState | None, Query(alias="state", description="Only jobs in this state.")]
LastEventId = Annotated[
    str | None, Header(description="Id of the last message seen: only what came later is sent.")
]
