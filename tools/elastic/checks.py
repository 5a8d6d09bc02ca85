"""What must hold after ranks were killed, added or taken away. Each check returns a sentence for what does not."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from gravac import check, read_trace
from gravac.protocol import JobSpec, WindowReport
from tools.elastic.launcher import last_step, starts

OFF = 1e-6
"""Largest difference between what came in and what was sent plus the residual, relative to the largest sum."""


def conserved(folder: Path) -> tuple[float, float, list[str]]:
    """Compare the sums of all ranks at each checkpoint and after each restart.

    A rank that trained alone sent all, so the start after it begins without a residual.

    Returns:
        The largest difference, the smallest residual that a restart began with, and what is wrong.
    """
    found, worst, residuals = [], 0.0, []
    for before, ranks in pairwise([[], *by_generation(folder)]):
        alone = bool(before) and before[0]["world"] == 1
        for start in ranks:
            for note in start["notes"]:
                if "off" not in note:
                    continue
                worst = max(worst, note["off"])
                if note["event"] == "loaded" and start["step"] and not alone:
                    residuals.append(note["residual"])
                if note["off"] > OFF:
                    found.append(
                        f"lost: rank {start['rank']}, step {note['step']}, {note['event']}: {note['off']:.2g}"
                    )
    if residuals and min(residuals) < 100 * OFF:
        found.append(
            f"no test: a restart began with a residual of {min(residuals):.2g}, so none could be lost"
        )
    return worst, min(residuals, default=0.0), found


def resumed(folder: Path) -> list[str]:
    """Check that each start went on from the newest checkpoint, with all its ranks."""
    found: list[str] = []
    generations = by_generation(folder)
    saved = 0
    for number, ranks in enumerate(generations):
        steps = {start["step"] for start in ranks}
        if len(steps) != 1 or len(ranks) != ranks[0]["world"]:
            found.append(
                f"start {number} has {len(ranks)} of {ranks[0]['world']} ranks, at steps {sorted(steps)}"
            )
        if ranks[0]["step"] < saved:
            found.append(
                f"start {number} began at step {ranks[0]['step']}, the checkpoint is of step {saved}"
            )
        saved = max([saved, *_saved(ranks)])
    return found


def by_generation(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the ranks of each start of the training, in order."""
    generations: list[list[dict[str, Any]]] = []
    for start in starts(folder):
        ranks = [one["rank"] for one in generations[-1]] if generations else []
        if not generations or start["rank"] in ranks or len(ranks) == generations[-1][0]["world"]:
            generations.append([])
        generations[-1].append(start)
    return generations


def _saved(ranks: list[dict[str, Any]]) -> list[int]:
    """Return the steps of checkpoints that every rank has left behind."""
    each = [{note["step"] for note in start["notes"] if note["event"] == "saved"} for start in ranks]
    return sorted(set.intersection(*each)) if each else []


def journal(folder: Path) -> tuple[int, int, list[str]]:
    """Check the journal: it replays, its windows are numbered without a gap, each start is one incarnation.

    A killed rank 0 takes the windows with it that no controller has acknowledged. They are missing between two starts.

    Returns:
        How many incarnations and windows it has, and what is wrong.
    """
    path = folder / "gravac-runs/elastic/journal.jsonl"
    if not path.exists():
        return 0, 0, ["there is no journal"]
    found = [str(difference) for difference in check(path).differences]
    records = [line.record for line in read_trace(path)]
    incarnations = list(
        dict.fromkeys(record.incarnation for record in records if isinstance(record, JobSpec))
    )
    windows = [record for record in records if isinstance(record, WindowReport)]
    for one, following in pairwise(windows):
        expected = following.window == one.window + 1
        lost = following.window > one.window and following.incarnation != one.incarnation
        if not (expected or lost):
            found.append(f"window {following.window} follows window {one.window}")
    order = [window.incarnation for window in windows]
    if order != sorted(order, key=incarnations.index):
        found.append("windows of an earlier start follow those of a later one")
    for incarnation in incarnations:
        steps = [window.first_step for window in windows if window.incarnation == incarnation]
        if steps != sorted(set(steps)):
            found.append(f"incarnation {incarnation} has windows from the steps {steps}")
    return len(incarnations), len(windows), found


def trained(folder: Path) -> int:
    """Return how many steps were done in all, those done again included."""
    return sum(last_step(start) - start["step"] for start in starts(folder) if start["rank"] == 0)
