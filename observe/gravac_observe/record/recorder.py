"""Counts the steps of a training by its optimizers, and records some of them with torch's profiler."""

import atexit
import contextlib
import gc
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from .delivery import WORD, Delivery, make_private, on_one_machine, own_store, recording, say

if TYPE_CHECKING:
    from gravac_observe import OptimizerSaid, Recorded

UNSEEN = (
    "no optimizer of torch.optim was stepped here. If trainers start elsewhere, as in a Ray cluster that runs already, "
    "call gravac.observe() in each of them. An optimizer whose step is compiled, or that is no torch.optim.Optimizer, "
    "is not seen: let torch.profiler record such a training, and judge it with gravac observe FILE…"
)
CUT_OFF = "the program was killed, or called os._exit, before the recording of its steps was whole"
UNSETTLED = 2
"""First steps, which allocate and build buckets, so that their time says little. [1; chosen]"""


class Recorder:
    """Records the steps of this process once its optimizers have made some. Whatever fails, the training goes on.

    A process that steps no optimizer, such as a worker of a data loader, is left alone.

    Args:
        steps: How many are recorded.
        warmup: Steps before; the profiler warms up in the last one.
        folder: Folder for traces, if all ranks of this machine know it already.
        judges: Whether rank 0 starts a process that prints the verdict.
    """

    def __init__(self, steps: int, warmup: int, folder: Path | None, judges: bool) -> None:
        self._steps, self._warmup, self._folder, self._judges = steps, warmup, folder, judges
        self._process = os.getpid()
        self._hook: Any = None
        self._seen = False  # whether any step was
        self._made: Counter[Hashable] = Counter()  # steps, by who made them
        self._optimizers: list[OptimizerSaid] = []
        self._sizes: dict[int, int] = {}  # of parameters
        self._counted: Hashable = None
        self._whole = -1  # recorded steps; -1: the profiler warms up
        self._left: dict[Hashable, tuple[float, float]] = {}  # clock and CPU time at the last step's end
        self._plain: defaultdict[Hashable, deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=100)
        )
        self._recorded: list[float] = []
        self._collections: list[
            list[float]
        ] = []  # of garbage, in microseconds since 1970, as the trace has them
        self._profiler: Any = None
        self._others = _OtherProfilers(self._step_aside)
        self._rank, self._world, self._store = 0, 1, None
        self._delivery: Delivery | None = None

    def start(self) -> None:
        """Wait for the first steps."""
        self._hook = register_optimizer_step_post_hook(self._stepped)
        if self._judges:
            atexit.register(self._say_if_unseen)
        else:
            self._leave_word(UNSEEN, "x")

    def _leave_word(self, what: str, mode: str) -> None:
        """Tell ``gravac observe`` what to say if there is no trace at the end: a killed process cannot."""
        if self._folder is not None:
            with contextlib.suppress(OSError), (self._folder / WORD).open(mode, encoding="utf-8") as file:
                file.write(what)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if os.getpid() != self._process:
            if self._seen:  # a fork of a process that trains
                return
            self._process = os.getpid()  # one of a launcher
        try:
            self._count(optimizer)
        except Exception as error:
            self._give_up(f"cannot record: {self._reason(error)}")

    def _count(self, optimizer: Optimizer) -> None:
        stepping = _who_steps(optimizer)
        if (left := self._left.get(stepping)) is not None:
            seconds = time.perf_counter() - left[0], time.thread_time() - left[1]
            if self._profiler is None:
                self._plain[stepping].append(seconds)
            elif stepping == self._counted and self._whole >= 0:
                self._recorded.append(seconds[1])
        self._advance(stepping, optimizer)
        self._left[stepping] = time.perf_counter(), time.thread_time()

    def _advance(self, stepping: Hashable, optimizer: Optimizer) -> None:
        if self._profiler is None:
            if not self._made:
                self._seen = True
                self._rank, self._world = _place()
                self._leave_word(CUT_OFF, "w")
                atexit.register(self._at_exit)
                if multiprocessing.parent_process() is not None:  # a fork of multiprocessing runs no atexit
                    Finalize(None, self._at_exit, exitpriority=0)
                self._others.watch()
            if stepping not in self._made:
                self._note(optimizer)
            self._made[stepping] += 1
            # A step is a round of all optimizers, so the rarest one counts them, of equals the one that ends the round.
            if next(iter(self._made.values())) >= max(1, self._warmup - 1) and stepping == self._rarest():
                self._counted = stepping
                self._begin()
        elif stepping == self._counted:
            self._whole += 1
            if self._whole == self._steps:
                self._end()
            else:
                with self._others.unwatched():
                    self._profiler.step()

    def _rarest(self) -> Hashable:
        """Return who makes the fewest steps, of those who make more than one."""
        repeated = {who: count for who, count in self._made.items() if count > 1} or self._made
        return min(reversed(repeated), key=lambda who: repeated[who])

    def _note(self, optimizer: Optimizer) -> None:
        """Note at its first step what an optimizer is, unless it steps what others do, in which it is wrapped."""
        groups = optimizer.param_groups
        sizes = {id(each): each.numel() for group in groups for each in group["params"]}
        new = sum(size for each, size in sizes.items() if each not in self._sizes)
        self._sizes |= sizes
        if not new:
            return
        inside = getattr(optimizer, "optim", None)  # of ZeroRedundancyOptimizer
        kind = type(inside if isinstance(inside, Optimizer) else optimizer)
        kinds: list[type] = [
            each for each in kind.__mro__ if issubclass(each, Optimizer) and each is not Optimizer
        ]
        firsts = (group["betas"][0] for group in groups if group.get("betas"))
        betas = [beta for beta in firsts if isinstance(beta, float)]  # a tensor's number is not waited for
        self._optimizers.append(
            {
                "classes": [_class_name(each) for each in kinds or [kind]],
                "beta": max(betas, default=None),
                "parameters": new,
            }
        )

    def _begin(self) -> None:
        """Warm the profiler up, for one step."""
        self._rank, self._world = _place()
        first = self._folder is None or not (self._folder / f"rank{self._rank}.json.gz").exists()
        if self._rank not in recording(self._world) or not first:  # another program of the command was first
            self._leave_word(f"of {self._world} ranks some record, but none of those that ran here", "w")
            self._leave()
            return
        if self._others.active or torch._C._autograd._profiler_enabled():
            self._step_aside()
            return
        self._about: Recorded = {
            "optimizer": ", ".join(dict.fromkeys(each["classes"][0] for each in self._optimizers)),
            "optimizers": self._optimizers,
            "parameters": sum(self._sizes.values()),
            "host": socket.gethostname(),
            "world": self._world,
            "framework": _framework(),
        }
        if self._world > 1 and not on_one_machine(self._folder, self._world):
            self._store = own_store()
        with self._others.unwatched():
            self._profiler = _profiler(self._steps)
            self._profiler.start()
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _: object) -> None:
        """Note a collection of garbage."""
        now = time.time_ns() / 1e3
        if phase == "start":
            self._collections.append([now, now])
        elif self._collections:
            self._collections[-1][1] = now

    def _end(self) -> None:
        """Stop the profiler, write the trace, and leave the training."""
        profiler, self._profiler = self._profiler, None
        about: Recorded = {**self._about, "whole_steps": self._whole, "collections": self._collections}
        plain = list(self._plain[self._counted])[UNSETTLED:]
        if plain and self._recorded:  # what the profiler adds to a step is no part of the training
            about["step_seconds"], about["thread_seconds"] = map(median, zip(*plain, strict=True))
            about["recorded_thread_seconds"] = median(self._recorded)
        with self._others.unwatched():
            profiler.add_metadata_json("gravac", json.dumps(about))
            profiler.stop()
        self._leave()
        home = Path(tempfile.mkdtemp(prefix="gravac-observe-")) if self._folder is None else self._folder
        make_private(home)
        trace = home / f"rank{self._rank}.json"
        profiler.export_chrome_trace(str(trace))
        _check_written(trace)
        self._delivery = Delivery(trace, self._rank, self._world, self._store, self._folder, self._judges)
        self._delivery.start()

    def _step_aside(self) -> None:
        """Leave torch's profiler to the program, which asks for it."""
        if self._profiler is not None and self._whole > 0:
            self._end()
        else:
            self._give_up(
                "the program records itself with torch.profiler, so this recording steps aside; judge the program's "
                "own traces with: gravac observe FILE…",
                only_first=True,
            )

    def _leave(self) -> None:
        hooks = self._hook.hooks_dict_ref()
        if next(reversed(hooks), None) == self._hook.id:
            self._hook.remove()
        elif self._hook.id in hooks:  # torch may be walking through them, towards those after ours
            hooks[self._hook.id] = _nothing
        self._others.unwatch()
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collecting)
        self._made.clear()
        self._left.clear()

    def _give_up(self, why: str, only_first: bool = False) -> None:
        """Say why, in a line on stderr, and leave the training."""
        profiler, self._profiler = self._profiler, None
        with contextlib.suppress(Exception):
            self._leave()
            if profiler is not None:
                profiler.stop()
        self._leave_word(why, "w")
        if self._rank == 0 or not only_first:
            say(why, self._folder)

    def _reason(self, error: Exception) -> str:
        if not isinstance(error, OSError) or error.filename is None:
            return f"{error!r:.300}"
        return f"{error!s:.300}; name another folder with {'TMPDIR' if self._folder is None else 'GRAVAC_DATA_DIR'}"

    def _say_if_unseen(self) -> None:
        """Say that there was nothing to record, where no other process does."""
        if not self._seen and os.getpid() == self._process:
            self._rank, _ = _place()
            self._give_up(f"no verdict: {UNSEEN}", only_first=True)

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return
        try:
            if self._profiler is not None and self._whole > 0:
                self._end()
            elif self._made:
                made = max(self._made.values())
                self._give_up(
                    f"the program ended after {made + self._whole + 1} steps of its optimizer, and "
                    f"{max(2, self._warmup) + 1} are needed: record earlier with a smaller warmup",
                    only_first=True,
                )
        except Exception as error:
            self._give_up(f"cannot record: {self._reason(error)}")
        if self._delivery is not None:
            self._delivery.finish()


class _OtherProfilers:
    """Notices when the program starts a profiler of torch, of which there can be one at a time.

    Args:
        aside: Function to call before one starts.

    Attributes:
        active: How many of the program's run.
    """

    def __init__(self, aside: Callable[[], None]) -> None:
        self.active, self._watching = 0, False
        self._aside = aside
        self._restore: Callable[[], None] = _nothing

    def watch(self) -> None:
        """Notice each start and end of a profiler."""
        from torch.autograd.profiler import profile as torch_profile

        profile: Any = torch_profile
        prepare, leave = profile._prepare_trace, profile.__exit__

        def preparing(profiler: Any) -> Any:
            if self._watching:
                self.active += 1
                self._aside()
            return prepare(profiler)

        def leaving(profiler: Any, *error: Any) -> Any:
            if self._watching:
                self.active -= 1
            return leave(profiler, *error)

        def restore() -> None:
            profile._prepare_trace, profile.__exit__ = prepare, leave

        profile._prepare_trace, profile.__exit__ = preparing, leaving
        self._watching, self._restore = True, restore

    def unwatch(self) -> None:
        """Leave torch's profiler as it was."""
        self._restore()
        self._watching, self._restore = False, _nothing

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Do something with our own profiler."""
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before


def _profiler(steps: int) -> Any:
    """Return a profiler that warms up for one step and then records, with marks around each step."""
    from torch import profiler
    from torch.profiler import ProfilerActivity

    make: Any = profiler.profile
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    more: dict[str, Any] = {}
    if (
        _framework() == "agent"
    ):  # which issues collectives in a thread of its own, where the profiler does not look
        with contextlib.suppress(TypeError):  # an older torch
            more["experimental_config"] = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    # One more than is recorded: the recorder stops the profiler, before it would do so by itself.
    plan = profiler.schedule(wait=0, warmup=1, active=steps + 1, repeat=1)
    return make(activities=activities, record_shapes=True, schedule=plan, **more)


def _check_written(trace: Path) -> None:
    """Raise why there is no trace, which torch's profiler does not say: it leaves what it could write beside it."""
    if trace.exists():
        return
    part = trace.with_suffix(".json.tmp")
    try:
        with part.open("ab") as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(trace)) from None
    finally:
        part.unlink(missing_ok=True)
    raise RuntimeError(f"torch's profiler wrote no {trace}")


def _who_steps(optimizer: Optimizer) -> Hashable:
    """Return what tells steps of a round apart: DeepSpeed steps one optimizer for each group of parameters in turn."""
    firsts = (id(group["params"][0]) for group in optimizer.param_groups if group["params"])
    return id(optimizer), *firsts


def _class_name(kind: type) -> str:
    """Return the name of an optimizer's class; torch's have the names of those of ``gravac.optim``."""
    return f"gravac.optim.{kind.__name__}" if kind.__module__.startswith("gravac.optim") else kind.__name__


def _framework() -> str:
    """Return what exchanges gradients, where the trace does not show it."""
    agents = sys.modules.get("gravac_agent.setup.running")
    if agents is not None and agents._running:
        return "agent"
    return "deepspeed" if "deepspeed.runtime.engine" in sys.modules else ""


def _place() -> tuple[int, int]:
    """Return rank and number of ranks."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _nothing(*_: Any) -> None:
    """Stand in for a hook that is no more."""
