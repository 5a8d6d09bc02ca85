"""One job from its first launch to the checks, with events at random moments, drawn from a seed."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.chaos import checks, events
from tools.chaos.journals import journals, latest
from tools.chaos.launch import lines, whole_lines
from tools.chaos.scene import Mode, Scene
from tools.chaos.witness import Witness

RECOVERY_SECONDS = 120.0
"""Longest time until the agent follows its controller again: more than its longest pause between attempts, and than a
controller's start on a busy machine."""
QUICK, SLOW = (0.05, 1.2), (1.5, 4.0)
"""Seconds between events: mostly short, so that events overlap; sometimes long enough to recover."""

Log = Callable[[str], None]


@dataclass
class Outcome:
    """The result of one episode."""

    mode: Mode
    events: Counter[str] = field(default_factory=Counter)
    log_lines: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    windows: int = 0
    handed_in: int = 0
    announced: int = 0
    """Windows whose loss the agents' logs announced."""
    launches: int = 0
    longest_step: float = 0.0


def run(folder: Path, seed: int, number: int, wanted: int, witness: Witness) -> Outcome:
    """Run ``wanted`` events on one job. Violations are not raised: see ``Outcome.wrong``."""
    chance = random.Random(f"{seed}:{number}")
    mode: Mode = "own" if number % 2 else "served"
    order = list(events.LIES)
    random.Random(seed).shuffle(order)
    scene, outcome = Scene(folder, mode, number, chance, order), Outcome(mode)
    try:
        run_events(scene, outcome, wanted)
        for left in scene.close():
            outcome.wrong.append(f"orphan: controller {left} outlived its training by 15 s")
        judge(scene, outcome, witness)
    finally:
        for training in scene.trainings:
            if training.outcome is None:
                training.kill(0)
                training.join()
        scene.close()
        if not outcome.wrong:
            scene.disk.unmount()
        else:
            keep(scene)
    return outcome


def run_events(scene: Scene, outcome: Outcome, wanted: int) -> None:
    """Run the job's launches and the events."""
    began, done, refused = time.monotonic(), 0, 0

    def log(what: str) -> None:
        outcome.log_lines.append(
            f"{time.monotonic() - began:7.2f} {scene.trainings and scene.training.launch.name} {what}"
        )

    begin(scene, log, outcome)
    while done < wanted and not outcome.wrong:
        scene.pause(scene.chance.uniform(*(QUICK if scene.chance.random() < 0.7 else SLOW)))
        if not scene.training.running:
            outcome.wrong.append(f"failed: {scene.training.launch.name} ended by itself")
            break
        kind = events.draw(scene)
        if kind.ends and scene.chance.random() < 0.5:
            recover(scene, outcome)  # a lost launch must not look like one that ended in an outage
            log("recovered")
        what = kind.happen(scene)
        if what is None:
            refused += 1
            if refused > 50 + 5 * done:
                outcome.wrong.append("stuck: no controller and no status for so long that nothing can happen")
            continue
        done += 1
        outcome.events[what] += 1
        log(what)
        if kind.ends:
            end(scene, log)
            if done < wanted:
                begin(scene, log, outcome)
    if scene.training.outcome is None:
        scene.pause(scene.chance.uniform(*QUICK))
        recover(scene, outcome)
        log("recovered")
        scene.controller()  # notes its token
        scene.training.stop()
        end(scene, log)


def begin(scene: Scene, log: Log, outcome: Outcome) -> None:
    """Start a launch; sometimes an event comes before its first step."""
    if scene.served is not None:
        scene.served.start(after=scene.chance.choice((0.0, scene.chance.uniform(0.0, 4.0))))
        if scene.chance.random() < 0.7:
            scene.served.wait()
    if scene.served is not None and scene.chance.random() < 0.4:
        what = events.cut(scene) or ""
        outcome.events[what] += 1
        log(f"{what}, before the start")
    scene.begin_launch()
    log("began")
    if scene.chance.random() < 0.6 or not scene.served:
        if not scene.training.wait_started():
            outcome.wrong.append(f"failed: {scene.training.launch.name} did not start")
        log("started")


def end(scene: Scene, log: Log) -> None:
    """Wait for the end of a launch, while faults last for their time."""
    training = scene.training
    until = time.monotonic() + 60
    while any(process.is_alive() for process in training.processes) and time.monotonic() < until:
        time.sleep(0.02)
        scene.pause(0.0)
    training.join()
    log(f"ended: {training.outcome}")


def recover(scene: Scene, outcome: Outcome) -> None:
    """Repair all faults and wait until the ranks follow the controller's decisions again."""
    scene.repair_all()
    training = scene.training
    if not training.wait_started():
        outcome.wrong.append(f"failed: {training.launch.name} did not start")
        return
    incarnation = next((note["incarnation"] for note in training.notes(0) if "incarnation" in note), "")
    handed_in = lines(training.launch.handed_in)
    target = (
        handed_in[-1]["last_step"] + 1 if handed_in else 0
    )  # of the next window, which was not handed in yet
    until, why = time.monotonic() + RECOVERY_SECONDS, ""
    while training.running:
        newest, epochs = latest(scene.data_dir, incarnation)
        status = training.status
        if newest < target:
            why = f"the journal ends at step {newest}, and not with a window from step {target} on"
        elif status["phase"] == "fallback":
            why = "the ranks are still dense"
        elif status["epoch"] not in epochs:
            why = f"the ranks follow epoch {status['epoch']}, the newest decisions are of {sorted(epochs)}"
        else:
            return
        if time.monotonic() > until:
            outcome.wrong.append(f"no recovery: {training.launch.name}: after {RECOVERY_SECONDS:g} s {why}")
            return
        time.sleep(0.1)
    outcome.wrong.append(f"failed: {training.launch.name} ended by itself")


def judge(scene: Scene, outcome: Outcome, witness: Witness) -> None:
    """Run all checks and fill in the outcome."""
    books = journals(scene.data_dir)
    acknowledged = scene.proxy.acknowledged if scene.proxy is not None else []
    wrong = [sentence for book in books for sentence in book.wrong]
    for training in scene.trainings:
        incarnations = {note["incarnation"] for note in training.notes(0) if "incarnation" in note}
        steps = {first_step for incarnation, first_step in acknowledged if incarnation in incarnations}
        wrong += checks.windows(training, books, steps)
        wrong += checks.ended(training, books)
        wrong += checks.equal(training)
        wrong += checks.times(training, witness)
        wrong += checks.log(training)
        wrong += checks.obeyed(training)
        for rank in range(training.launch.world):
            for note in training.notes(rank):
                outcome.longest_step = max(outcome.longest_step, note.get("longest", (0.0,))[0])
        outcome.handed_in += len(whole_lines(training.launch.handed_in))
        numbers, more = checks.announced(training.log())
        outcome.announced += len(numbers) + more
    wrong += checks.peers(scene)
    outcome.wrong += wrong
    outcome.launches = len(scene.trainings)
    outcome.windows = sum(len(book.windows) for book in books)


def keep(scene: Scene) -> None:
    """Copy the journals from the small disk, which is unmounted."""
    if scene.disk.mounted:
        shutil.copytree(scene.disk.folder, scene.folder / "saved", ignore=shutil.ignore_patterns(".full"))
        scene.disk.unmount()
