"""The kinds of events and how often they happen. An event returns what it was, or None when it is impossible now."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tools.chaos.controllers import send
from tools.chaos.peers import http_lies, json_lies
from tools.chaos.peers.lies import Lie
from tools.chaos.peers.proxy import CUTS, Scope, Trouble
from tools.chaos.peers.squatter import Squatter
from tools.chaos.scene import Mode, Scene

LIES: tuple[Lie, ...] = http_lies.LIES + json_lies.LIES
STOP_SECONDS = (0.2, 4.0)
SCOPES: tuple[Scope, ...] = ("all", "all", "all", "windows", "windows", "jobs", "events", "proof")
DECISIONS: tuple[Scope, ...] = ("all", "windows", "windows", "jobs")


@dataclass(frozen=True)
class Kind:
    """One kind of event. ``ends``: the training is over after it."""

    name: str
    weight: int
    modes: tuple[Mode, ...]
    happen: Callable[[Scene], str | None]
    ends: bool = False


def kill(scene: Scene) -> str | None:
    """Kill the controller (SIGKILL)."""
    pid = scene.controller()
    if pid is None:
        return None
    if scene.served is not None:
        scene.served.kill()
        scene.served.start(after=scene.chance.uniform(0.0, 2.0))
    elif not send(pid, signal.SIGKILL):
        return None
    return "kill"


def kill_and_squat(scene: Scene) -> str | None:
    """Kill the agent's own controller and bind its port at once."""
    scene.wait_for_answers(always=True)
    pid, port = scene.controller(), scene.port()
    if pid is None or port is None or port in scene.squatted:
        return None
    silent = scene.chance.random() < 0.25
    lie = None if silent else scene.next_lie()
    squatter = Squatter(lie, scene.context)
    scene.watches.append(squatter.watch)
    if not send(pid, signal.SIGKILL):
        return None
    if not squatter.bind(port):
        return "kill (a squatter came too late)"
    scene.squatted.add(port)
    stays = scene.chance.choice((scene.chance.uniform(0.5, 5.0), 1e6))
    scene.add_fault("squatter", stays, squatter.close)
    return f"squatter: {'silent' if lie is None else lie.name}"


def stop(scene: Scene) -> str | None:
    """Stop the controller (SIGSTOP) and continue it later."""
    pid = scene.controller()
    if pid is None or any(fault.what == "stopped" for fault in scene.faults):
        return None
    scene.stop_process(pid, scene.chance.uniform(*STOP_SECONDS))
    return "stop"


def full_disk(scene: Scene) -> str | None:
    """Leave no room for the journal for a while."""
    if any(fault.what == "disk" for fault in scene.faults):
        return None
    scene.disk.fill(scene.controller())
    scene.add_fault("disk", scene.chance.uniform(0.2, 3.0), scene.disk.free)
    return "full disk"


def cut(scene: Scene) -> str | None:
    """Cut the next few connections within a request or its answer."""
    scene.wait_for_answers()
    where, scope = scene.chance.choice(CUTS), scene.chance.choice(SCOPES)
    times = scene.chance.choice((1, 1, 2, 5))
    scene.trouble(Trouble(scope, cut=where, times=times), seconds=scene.chance.uniform(0.5, 3.0))
    return f"cut: {where} ({scope})"


def kill_in_answer(scene: Scene) -> str | None:
    """Kill the controller in the middle of an answer, after it wrote its journal."""
    served = scene.served
    if served is None or served.pid is None:
        return None
    scene.wait_for_answers()
    where = scene.chance.choice(CUTS[1:])
    after = scene.chance.uniform(0.0, 2.0)

    def die() -> None:
        served.kill()
        served.start(after=after)

    scope = scene.chance.choice(SCOPES[:-2])
    scene.trouble(Trouble(scope, cut=where, times=1, then=die), seconds=2.0)
    return f"kill in answer: {where} ({scope})"


def lie(scene: Scene) -> str | None:
    """Have the proxy answer with a lie for a while."""
    scene.wait_for_answers()
    chosen = scene.next_lie()
    scope = (
        scene.chance.choice(SCOPES if chosen.any_request else DECISIONS)
        if chosen.scope is None
        else chosen.scope
    )
    trouble = Trouble(scope, lie=chosen)
    scene.trouble(trouble, seconds=scene.chance.uniform(0.3, 4.0))
    return f"lie: {chosen.name} ({scope})"


def kill_rank(rank: int) -> Callable[[Scene], str | None]:
    """Kill a rank; the training is started again under the same name."""

    def happen(scene: Scene) -> str | None:
        if not scene.training.status:
            return None
        scene.controller()  # notes its token
        scene.training.kill(rank)
        return f"kill rank {rank}"

    return happen


def kill_before_end(scene: Scene) -> str | None:
    """Kill the controller just before the training ends in order."""
    if not scene.training.status or kill(scene) is None:
        return None
    time.sleep(scene.chance.choice((0.0, scene.chance.uniform(0.0, 0.3))))
    scene.training.fresh_controller = True
    scene.training.stop()
    return "kill before the end"


def end_during_fault(scene: Scene) -> str | None:
    """End the training in order during a fault."""
    if scene.served is not None and not scene.faults:
        scope: Scope = scene.chance.choice(("end", "windows", "all"))
        where, chosen = scene.chance.choice(CUTS), scene.next_lie()
        trouble = Trouble(scope, cut=where, times=scene.chance.choice((1, 2, 9)))
        scene.trouble(trouble if scene.chance.random() < 0.5 else Trouble(scope, lie=chosen), seconds=3.0)
    if not scene.training.status or not scene.faults:
        return None
    what = " and ".join(sorted({fault.what for fault in scene.faults}))
    scene.training.fresh_controller = True
    scene.training.stop()
    return f"end during: {what}"


BOTH: tuple[Mode, ...] = ("own", "served")
KINDS = (
    Kind("kill", 4, ("own",), kill),
    Kind("kill", 3, ("served",), kill),
    Kind("squatter", 8, ("own",), kill_and_squat),
    Kind("stop", 3, BOTH, stop),
    Kind("full disk", 2, BOTH, full_disk),
    Kind("cut", 8, ("served",), cut),
    Kind("kill in answer", 3, ("served",), kill_in_answer),
    Kind("lie", 14, ("served",), lie),
    Kind("kill rank 0", 1, BOTH, kill_rank(0), ends=True),
    Kind("kill rank 1", 1, BOTH, kill_rank(1), ends=True),
    Kind("kill before the end", 2, ("own",), kill_before_end, ends=True),
    Kind("kill before the end", 1, ("served",), kill_before_end, ends=True),
    Kind("end during", 1, BOTH, end_during_fault, ends=True),
)


def draw(scene: Scene) -> Kind:
    """Draw the next kind of event."""
    kinds = [kind for kind in KINDS if scene.mode in kind.modes]
    return scene.chance.choices(kinds, [kind.weight for kind in kinds])[0]
