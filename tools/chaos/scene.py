"""What the events of an episode act on: a job's controller, proxy, disk and training, and their present faults."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.chaos.controllers import Served, children, of_folder, send, token_of
from tools.chaos.disk import Disk
from tools.chaos.launch import Launch
from tools.chaos.peers.lies import Lie, LieContext
from tools.chaos.peers.proxy import Proxy, Trouble
from tools.chaos.peers.squatter import Squatter
from tools.chaos.peers.watch import Watch
from tools.chaos.training import Training

Mode = Literal["own", "served"]
"""Whose controller: the agent starts its own, or we serve one behind a proxy."""
CALM_SECONDS = 30.0
"""Longer than an agent's longest pause between attempts, and than a controller's start."""
POLICIES = ("gravac:warmup_windows=1", "static:cf=10,warmup_windows=1")


@dataclass
class Fault:
    """A fault that lasts until a monotonic time."""

    what: str
    until: float
    repair: Callable[[], None]


class Scene:
    """The processes, servers and files of one episode. ``close`` frees them all."""

    def __init__(
        self, folder: Path, mode: Mode, number: int, chance: random.Random, order: list[Lie]
    ) -> None:
        self.folder, self.mode, self.chance = folder, mode, chance
        folder.mkdir(parents=True)
        self.disk = Disk(folder / "disk")
        self.data_dir = self.disk.folder / "runs"
        self._number, self._lies, self._order = number, 0, order
        self.job, self.policy = f"job{number}", chance.choice(POLICIES)
        self.context = LieContext(self.job, self.policy, random.Random(chance.random()))
        self.elsewhere = Squatter(None, self.context, name="where redirects lead")
        self.elsewhere.bind(0)
        self.elsewhere.watch.strict = True
        self.context.elsewhere = f"http://127.0.0.1:{self.elsewhere.port}"
        self.watches: list[Watch] = [self.elsewhere.watch]
        self.tokens: set[str] = set()
        self.trainings: list[Training] = []
        self.faults: list[Fault] = []
        self.squatted: set[int] = set()
        """Ports that squatters have, or had."""
        self.proxy: Proxy | None = None
        self.served: Served | None = None
        part_bytes = {"GRAVAC_CONTROLLER_JOURNAL_PART_BYTES": "65536"} if chance.random() < 0.5 else {}
        self.environment = {"GRAVAC_KERNELS": "reference", "GRAVAC_COLLECTIVE": "gather", **part_bytes}
        if mode == "served":
            self.proxy = Proxy(self.context, random.Random(chance.random()))
            self.served = Served(self.data_dir, folder / "controller.log", self.proxy, part_bytes)
            self.tokens.add(self.served.token)
            self.environment["GRAVAC_TOKEN"] = self.served.token

    @property
    def training(self) -> Training:
        return self.trainings[-1]

    def begin_launch(self) -> None:
        """Start the training, or start it again: the same job in new processes."""
        options = {
            "data_dir": str(self.data_dir),
            "job": self.job,
            "policy": self.policy,
            "window": 5,
            "agreement_seconds": 30.0,
        }
        if self.proxy is not None:
            options["controller"] = self.proxy.url
        name = f"launch{len(self.trainings)}"
        self.trainings.append(Training(Launch(self.folder, name, 2, options, self.environment)))

    def controller(self) -> int | None:
        """Return the running controller's process; None where there is none."""
        if self.served is not None:
            return self.served.pid
        found = children(self.training.pid)
        for pid in found:
            token = token_of(pid)
            if token is not None:
                self.tokens.add(token)
        return found[0] if found else None

    def port(self) -> int | None:
        """Return the port of the agent's own controller; None where the agent has not reported it."""
        url = self.training.status.get("url")
        return int(url.rsplit(":", 1)[1]) if url else None

    def add_fault(self, what: str, seconds: float, repair: Callable[[], None]) -> None:
        """Add a fault that lasts for ``seconds``."""
        self.faults.append(Fault(what, time.monotonic() + seconds, repair))

    def next_lie(self) -> Lie:
        """Return the next kind, in an order that follows from the seed."""
        self._lies += 1
        return self._order[(self._number * 5 + self._lies) % len(self._order)]

    def wait_for_answers(self, always: bool = False) -> None:
        """Usually wait until windows are answered, so that the next event meets a working job."""
        if not self.trainings or (not always and self.chance.random() < 0.4):
            return
        known = 0 if self.proxy is None else len(self.proxy.acknowledged)
        until = time.monotonic() + CALM_SECONDS
        while time.monotonic() < until and self.training.running:
            if self.proxy is not None and len(self.proxy.acknowledged) >= known + 2:
                return
            status = self.training.status
            if self.proxy is None and status.get("url") and status["phase"] != "fallback":
                return
            self.pause(0.02)

    def pause(self, seconds: float) -> None:
        """Wait, and repair the faults whose time is over."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self._repair([fault for fault in self.faults if fault.until <= now])
            if now >= until or not self.training.running:
                return
            time.sleep(min(0.02, until - now))

    def repair_all(self) -> None:
        """Repair all faults, except a taken port, which an agent does not need."""
        self._repair([fault for fault in self.faults if fault.what != "squatter"])
        if self.served is not None:
            self.served.wait()

    def trouble(self, trouble: Trouble, seconds: float) -> None:
        """Have the proxy make this trouble for ``seconds``."""
        assert self.proxy is not None
        self._repair([fault for fault in self.faults if fault.what == "wire"])
        proxy = self.proxy
        self.watches.append(trouble.watch)
        proxy.trouble = trouble

        def repair() -> None:
            proxy.trouble = None
            trouble.watch.end()

        self.add_fault("wire", seconds, repair)

    def stop_process(self, pid: int, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT after ``seconds``."""
        if send(pid, signal.SIGSTOP):
            self.add_fault("stopped", seconds, lambda: void(send(pid, signal.SIGCONT)))

    def close(self) -> list[int]:
        """Free everything. Returns the controllers that outlive their training."""
        self._repair(list(self.faults))
        if self.served is not None:
            self.served.stop()
        if self.proxy is not None:
            self.proxy.close()
        self.elsewhere.close()
        until = time.monotonic() + 15
        while (left := of_folder(self.data_dir)) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in left:
            send(pid, signal.SIGKILL)
        return left

    def _repair(self, faults: list[Fault]) -> None:
        for fault in faults:
            self.faults.remove(fault)
            fault.repair()


def void(result: object) -> None:
    """Drop a result, where a function without one is needed."""
