"""``python -m tools.elastic --kills 20``: kill ranks of a training, change their number, and check what is left."""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.elastic import checks
from tools.elastic.launcher import Torchrun, alive, controllers, starts, wait_for_steps

EVERY = 10
"""Steps between checkpoints."""
ONE_HOST = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
COMPRESSED = {"GRAVAC_WINDOW": "5", "GRAVAC_POLICY": "static:cf=20"}
"""With a controller that rank 0 starts. Ranks compress in every step but the first, also before the controller is up
and where policy ``auto`` would not: a dense step leaves no residual that could be lost."""
BY_DEFAULT = {"GRAVAC_WINDOW": "5", "GRAVAC_LINK": "10mbit"}
"""Policy ``auto``, on a link where it compresses."""
IN_PROCESS = COMPRESSED | {"GRAVAC_CONTROLLER": "none", "GRAVAC_COLLECTIVE": "gather"}
"""Decisions that do not depend on measured times, so that two runs can be compared bit for bit."""
MOST_STEPS = 100
"""Between a start and a kill. That is before, while and after the controller of that start comes up."""
CONTROLLER_END_SECONDS = 10.0


def kills(folder: Path, count: int, chance: random.Random) -> dict[str, Any]:
    """SIGKILL a random rank at a random step, ``count`` times in one run of 2 ranks."""
    after = [chance.randint(1, MOST_STEPS) for _ in range(count)]
    steps = sum(after) + EVERY * (count + 2)
    arguments = [*ONE_HOST, "--nproc-per-node", "2", "--max-restarts", str(count + 2)]
    run, killed, most = Torchrun(folder, arguments, steps, EVERY, COMPRESSED), [], 0
    try:
        for wanted in after:
            ranks = wait_for_steps(run, 2, wanted)
            victim = chance.choice(ranks)
            most = max(most, controllers(folder))
            os.kill(victim["pid"], signal.SIGKILL)
            killed.append(victim["rank"])
            print(f"kill {len(killed)}: rank {victim['rank']}, started at step {victim['step']}", flush=True)
            while any(alive(rank, folder) for rank in ranks):
                time.sleep(0.02)
        code = run.wait()
    finally:
        run.end()
    return {"exit code": code, "killed ranks": killed, "most controllers": most} | checked(folder)


def worlds(folder: Path, chance: random.Random) -> dict[str, Any]:
    """2, 3 and 2 ranks, each from the checkpoint of the run before."""
    codes = []
    for number, world in enumerate((2, 3, 2), 1):
        arguments = [*ONE_HOST, "--nproc-per-node", str(world)]
        run = Torchrun(folder, arguments, 20 * number, EVERY, COMPRESSED)
        try:
            codes.append(run.wait())
        finally:
            run.end()
    return {"exit code": max(codes), "ranks": ranks_of(folder)} | checked(folder, [2, 3, 2])


def joining(folder: Path, chance: random.Random) -> dict[str, Any]:
    """2 ranks, a host with a third one joins and is lost again, without a restart of the first host's torchrun."""
    port = chance.randint(20_000, 30_000)
    shared = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "elastic", "--max-restarts", "9"]
    shared += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "last_call_timeout=3"]
    first = Torchrun(folder, [*shared, "--nproc-per-node", "2"], 400, EVERY, COMPRESSED)
    second = None
    try:
        wait_for_steps(first, 2, 5 * EVERY)
        second = Torchrun(folder, [*shared, "--nproc-per-node", "1"], 400, EVERY, COMPRESSED)
        lose(second, wait_for_steps(first, 3, 5 * EVERY))
        wait_for_steps(first, 2, 5 * EVERY)
    finally:
        first.end()
        if second is not None:
            second.end()
    return {"exit code": 0, "ranks": ranks_of(folder)} | checked(folder, [2, 3, 2])


def alone(folder: Path, chance: random.Random) -> dict[str, Any]:
    """2 hosts of a rank each; the second one is lost, so the first trains alone; a new second one joins it."""
    port = chance.randint(20_000, 30_000)
    shared = ["--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-id", "elastic", "--max-restarts", "9"]
    shared += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--nproc-per-node", "1"]

    def host(first: bool) -> Torchrun:
        conf = ["--rdzv-conf", f"last_call_timeout=3,is_host={int(first)}"]  # the store is not to be lost
        return Torchrun(folder, [*shared, *conf], 100_000, EVERY, BY_DEFAULT)

    hosts = [host(first=True), host(first=False)]
    try:
        lose(hosts[1], wait_for_steps(hosts[0], 2, 6 * EVERY))
        wait_for_steps(hosts[0], 1, 4 * EVERY)
        hosts.append(host(first=False))
        wait_for_steps(hosts[0], 2, 4 * EVERY)
    finally:
        for one in hosts:
            one.end()
    return {"exit code": 0, "ranks": ranks_of(folder)} | checked(folder, [2, 1, 2])


def lose(host: Torchrun, ranks: list[dict[str, Any]]) -> None:
    """SIGKILL a host's torchrun and its ranks, as where the host loses power.

    Args:
        host: Its torchrun.
        ranks: Of all hosts.
    """
    host.process.kill()
    for rank in ranks:
        if parent(rank["pid"]) in (1, host.process.pid):
            os.kill(rank["pid"], signal.SIGKILL)


def exact(folder: Path, chance: random.Random) -> dict[str, Any]:
    """40 steps in one go, and in two runs: the parameters must be the same, bit for bit."""
    digests, codes, wrong = [], [], []
    for name, stages in (("whole", (40,)), ("parts", (20, 40))):
        place = folder / name
        place.mkdir(parents=True)
        for steps in stages:
            run = Torchrun(place, [*ONE_HOST, "--nproc-per-node", "2"], steps, EVERY, IN_PROCESS)
            try:
                codes.append(run.wait())
            finally:
                run.end()
        wrong += checks.resumed(place)
        ends = [
            note for start in starts(place)[-2:] for note in start["notes"] if note["event"] == "finished"
        ]
        digests.append({end["parameters"] for end in ends})
    same = digests[0] == digests[1] and len(digests[0]) == 1
    if not same:
        wrong.append(f"the parameters differ: {digests}")
    return {"exit code": max(codes), "bit equal": same, "wrong": wrong}


def parent(pid: int) -> int:
    """Return the process that started ``pid``; 1 where that has ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ranks_of(folder: Path) -> list[int]:
    """Return the number of ranks of each start."""
    return [ranks[0]["world"] for ranks in checks.by_generation(folder)]


def checked(folder: Path, ranks: list[int] | None = None) -> dict[str, Any]:
    """Run all checks. ``ranks``: how many each start must have had."""
    until = time.monotonic() + CONTROLLER_END_SECONDS
    while controllers(folder) and time.monotonic() < until:
        time.sleep(0.1)
    off, residual, wrong = checks.conserved(folder)
    incarnations, windows, more = checks.journal(folder)
    wrong += more + checks.resumed(folder)
    if ranks is not None and ranks_of(folder) != ranks:
        wrong.append(f"the starts had {ranks_of(folder)} ranks, not {ranks}")
    left = controllers(folder)
    if left:
        wrong.append(f"{left} controllers are left")
    return {
        "starts": len(checks.by_generation(folder)),
        "steps": checks.trained(folder),
        "off": off,
        "smallest residual at a restart": residual,
        "incarnations": incarnations,
        "windows": windows,
        "wrong": wrong,
    }


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.elastic", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="kills, worlds, joining, alone, exact [all]")
    parser.add_argument("--kills", type=int, default=20, help="how often a rank is killed [20]")
    parser.add_argument("--seed", type=int, default=1, help="which rank, and when, follows from it [1]")
    parser.add_argument("--folder", type=Path, help="where to keep everything [a temporary folder]")
    parser.add_argument("--json", type=Path, help="write the summary here, too")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what was started
    folder: Path = (given.folder or Path(tempfile.mkdtemp(prefix="gravac-elastic-"))).absolute()
    parts: dict[str, Callable[[Path, random.Random], dict[str, Any]]] = {
        "kills": lambda place, chance: kills(place, given.kills, chance),
        "worlds": worlds,
        "joining": joining,
        "alone": alone,
        "exact": exact,
    }
    if unknown := set(given.parts) - parts.keys():
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(parts)}")
    found: dict[str, dict[str, Any]] = {}
    for name in given.parts or parts:
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        began = time.monotonic()
        found[name] = parts[name](place, random.Random(given.seed))
        found[name]["seconds"] = round(time.monotonic() - began)
        print(json.dumps({name: found[name]}, indent=2), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    wrong = any(one["wrong"] or one.get("exit code") for one in found.values())
    if not wrong and given.folder is None:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
