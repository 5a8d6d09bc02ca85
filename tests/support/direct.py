"""Reports windows to a job without HTTP, for tests that need many."""

import asyncio

from gravac.protocol import Decision
from tests.support.in_process import InProcess
from tools.harness.builders import Trainer


def run(app: InProcess, trainer: Trainer, decision: Decision, windows: int) -> Decision:
    """Report this many windows; return the decision on the last."""
    job = app.services.store.get(trainer.job)

    async def send() -> Decision:
        latest = decision
        for _ in range(windows):
            latest = (await job.window(trainer.report(latest))).decision
        return latest

    return asyncio.run(send())
