"""What one window of ``auto`` costs: Python calls, returns to a file left before, files entered (``tools.calls``)."""

import sys
from types import FrameType

import pytest

from tools.calls import PACKAGES, ROOT, Call, Counted
from tools.harness.plan_world import Job, World


def counted(job: Job) -> Counted:
    """Return the calls of the next decision of a job."""
    policy, report, calls = job.fold.policy, job.reports[-1], list[Call]()
    state = policy.State.model_validate_json(job.fold.policy_state)

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGES) or code.co_name.startswith("<"):
            return  # comprehensions are no calls
        calls.append(Call("main", code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    sys.setprofile(profile)
    try:
        policy.decide(state, report)
    finally:
        sys.setprofile(None)
    return Counted(calls, 0)


@pytest.mark.parametrize("kind", ["sgd", "adam-aged"])
def test_a_window_in_hold_costs_few_calls(kind: str) -> None:
    """Of a job with all plans. Before the table there were 6,176 calls, 1,884 returns and 16 files."""
    job = Job(World(ranks=4, megabits=30.0, kind=kind, reference=True, huffman=True))
    assert job.windows(12).phase == "hold"
    found = counted(job)
    print(f"{kind}: {len(found.calls)} calls, {found.returns} returns, {found.files} files")
    most = {
        name: sum(call[1:] == name for call in found.calls) for name in {call[1:] for call in found.calls}
    }
    top = sorted(most.items(), key=lambda item: -item[1])[:15]
    assert len(job.last.candidates) >= 20
    assert len(found.calls) <= 1_500, top
    assert found.returns <= 400, top
    assert found.files <= 11, sorted({call.file for call in found.calls})
