"""``python -m tools.chaos --events 500 --seed 1``: run it, print what happened, exit 1 when a check failed."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.chaos import training
from tools.chaos.episode import Outcome, run
from tools.chaos.witness import Witness

EVENTS_AN_EPISODE = 10


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=500, help="how many events in all [500]")
    parser.add_argument("--seed", type=int, default=1, help="what happens, and when, follows from it [1]")
    parser.add_argument("--per-episode", type=int, default=EVENTS_AN_EPISODE, help="events on one job [10]")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first episode: repeat one, or go on [0]"
    )
    parser.add_argument("--folder", type=Path, help="where to keep what failed [a temporary folder]")
    parser.add_argument("--stop", action="store_true", help="end after the first episode that failed")
    parser.add_argument("--json", type=Path, help="write the summary here, too")
    given = parser.parse_args(arguments)
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # unmounts, ends what was started
    folder: Path = given.folder or Path(tempfile.mkdtemp(prefix="gravac-chaos-"))
    folder = folder.absolute()
    training.prepare()
    witness, began, number = Witness(), time.monotonic(), given.first
    outcomes: list[Outcome] = []
    try:
        while (done := happened(outcomes)) < given.events:
            place = folder / f"seed{given.seed}-episode{number}"
            shutil.rmtree(place, ignore_errors=True)
            wanted = min(given.per_episode, given.events - done)
            outcome = run(place, given.seed, number, wanted, witness)
            outcomes.append(outcome)
            print_outcome(number, outcome, given, place)
            if not outcome.wrong:
                shutil.rmtree(place, ignore_errors=True)
            if outcome.wrong and given.stop:
                break
            number += 1
    finally:
        witness.close()
    found = summary(outcomes, time.monotonic() - began)
    print(json.dumps(found, indent=2))
    print(f"next: --first {number} --seed {given.seed}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


def happened(outcomes: list[Outcome]) -> int:
    return sum(outcome.events.total() for outcome in outcomes)


def print_outcome(number: int, outcome: Outcome, given: argparse.Namespace, place: Path) -> None:
    """Print a line for an episode, and the events of one that failed."""
    print(
        f"episode {number} ({outcome.mode}): {outcome.events.total()} events, {outcome.launches} launches, "
        f"{outcome.windows} windows, longest step {outcome.longest_step:.2f} s: "
        f"{'FAILED' if outcome.wrong else 'ok'}",
        flush=True,
    )
    if outcome.wrong:
        for line in outcome.log_lines:
            print(f"    {line}")
        for sentence in outcome.wrong:
            print(f"  VIOLATION {sentence}")
        print(
            f"  see {place}; again: python -m tools.chaos --seed {given.seed} --first {number} "
            f"--events {outcome.events.total()} --per-episode {given.per_episode}",
            flush=True,
        )


def summary(outcomes: list[Outcome], seconds: float) -> dict[str, object]:
    """What all episodes came to."""
    events: Counter[str] = sum((outcome.events for outcome in outcomes), Counter())
    return {
        "events": events.total(),
        "events_by_kind": dict(sorted(events.items())),
        "episodes": len(outcomes),
        "launches": sum(outcome.launches for outcome in outcomes),
        "windows_handed_in": sum(outcome.handed_in for outcome in outcomes),
        "windows_journaled": sum(outcome.windows for outcome in outcomes),
        "windows_announced_as_lost": sum(outcome.announced for outcome in outcomes),
        "longest_step_seconds": round(max((outcome.longest_step for outcome in outcomes), default=0.0), 3),
        "violations": sum(len(outcome.wrong) for outcome in outcomes),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
