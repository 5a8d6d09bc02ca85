"""Brings the traces of all ranks into one folder: directly, or through the store of the job's process group.

No collective: one more could meet one of the program's. Rank 0 says in the store where its folder is. A rank that sees
that folder moves its trace there, another one puts it into the store, in pieces.
"""

import contextlib
import gzip
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

SECONDS = 60.0
"""How long rank 0 waits for the other ranks' traces, and they for its folder."""
EXIT_SECONDS = 10.0
"""How much longer a program lives for that at its end."""
VERDICT_SECONDS = 60.0
"""How much longer rank 0 lives until the verdict is printed, where no other process waits for it."""
POLL_SECONDS = 0.1
STORE_SECONDS = 5.0
"""Time limit of one request to the store."""
PIECE = 1 << 20
MOST_BYTES, MOST_OF_ALL = 32 << 20, 1 << 30
"""Size of one packed trace that is sent, and of all."""
MOST_RANKS = 64
"""Ranks that record."""
COMPLETE, SENT, SAID, WORD, TOKEN = "complete", "sent", "said", "word", ".token"
"""Files in the folder: no more traces will come; those of this machine went elsewhere; a process said why it has none;
why there is none, where no process says so; and what proves to a rank that the folder which it sees is rank 0's."""


class Delivery(threading.Thread):
    """Delivers one rank's trace, beside the training.

    Args:
        trace: File of the trace.
        rank: Rank of this process.
        world: Number of ranks.
        store: Connection of its own; None: there is none.
        folder: Folder for the traces of this machine; None: rank 0 names it.
        judges: Whether rank 0 starts the verdict.
    """

    def __init__(
        self, trace: Path, rank: int, world: int, store: Any, folder: Path | None, judges: bool
    ) -> None:
        super().__init__(name="gravac-observe", daemon=True)
        self._trace, self._rank, self._world, self._store = trace, rank, world, store
        self._folder, self._judges = folder, judges
        self._until = time.monotonic() + SECONDS
        self._prefix = f"gravac-observe/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/"
        self._verdict: subprocess.Popen[bytes] | None = None

    def finish(self) -> None:
        """Wait for it at the end of the program, not for long."""
        self._until = min(self._until, time.monotonic() + EXIT_SECONDS)
        self.join(EXIT_SECONDS + STORE_SECONDS)
        if self._verdict is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._verdict.wait(VERDICT_SECONDS)

    def run(self) -> None:
        packed = self._trace
        try:
            packed = self._pack()
            if self._rank == 0:
                self._collect(packed)
            elif not on_one_machine(self._folder, self._world):
                self._hand_over(packed)
        except Exception as error:
            say(
                f"the trace of rank {self._rank} lies at {socket.gethostname()}:{packed}: {error!r:.300}",
                self._folder,
            )
        self._store = None

    def _pack(self) -> Path:
        """Compress the trace."""
        packed = self._trace.with_suffix(".json.gz")
        part = packed.with_suffix(".part")
        try:
            with self._trace.open("rb") as plain, gzip.open(part, "wb", compresslevel=1) as out:
                shutil.copyfileobj(plain, out, PIECE)
            part.replace(packed)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._trace.unlink()
        return packed

    def _collect(self, packed: Path) -> None:
        """Gather all traces in a folder, then say that it is complete."""
        folder = self._folder
        if folder is None:
            folder = _new_folder()
            shutil.move(packed, folder / packed.name)
            packed.parent.rmdir()
        if self._store is not None:
            token = secrets.token_hex(16)
            (folder / TOKEN).write_text(token)
            self._store.set(f"{self._prefix}home", json.dumps({"folder": str(folder), "token": token}))
        missing = set(recording(self._world)) - {0}
        while missing and time.monotonic() < self._until:
            missing -= {rank for rank in missing if self._has(rank, folder)}
            time.sleep(POLL_SECONDS if missing else 0.0)
        if missing:
            ranks = ", ".join(map(str, sorted(missing)))
            say(f"no trace of these ranks, which recorded no step of an optimizer in time: {ranks}", folder)
        (folder / COMPLETE).touch()
        if self._judges:
            self._verdict = _judge(folder)

    def _has(self, rank: int, folder: Path) -> bool:
        """Take a trace out of the store, if it is there. Return whether nothing more will come from the rank."""
        if (folder / f"rank{rank}.json.gz").exists():
            return True
        key = f"{self._prefix}{rank}"
        if self._store is None or not self._store.check([key]):
            return False
        said = json.loads(self._store.get(key))
        if "lies" in said:
            say(f"no trace of rank {rank}: {said['lies']}", folder)
            return True
        part = folder / f"rank{rank}.part"
        with part.open("wb") as out:
            for number in range(int(said["pieces"])):
                out.write(self._store.get(f"{key}/{number}"))
                self._store.delete_key(f"{key}/{number}")
        part.replace(folder / f"rank{rank}.json.gz")
        return True

    def _hand_over(self, packed: Path) -> None:
        """Give the trace to rank 0, unless it lies in its folder, which rank 0 sees before it ends with the store."""
        key, there = f"{self._prefix}home", packed.parent / TOKEN
        while not there.exists():
            if self._store is None:
                raise OSError("the job has no store to send it through")
            if self._store.check([key]):
                break
            if time.monotonic() > self._until:
                raise OSError("rank 0 did not record")
            time.sleep(POLL_SECONDS)
        if there.exists():
            return
        assert self._store is not None
        home = json.loads(self._store.get(key))
        folder = Path(home["folder"])
        if _reads(folder / TOKEN, home["token"]):
            if packed.parent != folder:
                part = folder / f"rank{self._rank}.part"
                shutil.move(packed, part)
                part.replace(folder / packed.name)
                self._tidy(packed)
            return
        data, key = packed.read_bytes(), f"{self._prefix}{self._rank}"
        if len(data) > min(MOST_BYTES, MOST_OF_ALL // self._world):
            lies = f"{len(data):,} bytes are too many to send; it lies at {socket.gethostname()}:{packed}"
            self._store.set(key, json.dumps({"lies": lies}))
            return
        pieces = range(0, len(data), PIECE)
        for number, at in enumerate(pieces):
            self._store.set(f"{key}/{number}", data[at : at + PIECE])
        self._store.set(key, json.dumps({"pieces": len(pieces)}))
        while self._store.check([f"{key}/{len(pieces) - 1}"]):  # rank 0 takes it out
            if time.monotonic() > self._until:
                raise OSError("rank 0 did not take it in time")
            time.sleep(POLL_SECONDS)
        packed.unlink()
        self._tidy(packed)

    def _tidy(self, packed: Path) -> None:
        if self._folder is None:
            packed.parent.rmdir()
        else:
            (self._folder / SENT).touch()


def on_one_machine(folder: Path | None, world: int) -> bool:
    """Return whether all ranks are known to be on this machine, and to know the folder."""
    return folder is not None and os.environ.get("LOCAL_WORLD_SIZE") == str(world)


def own_store() -> Any:
    """Return a connection of our own to the store of the default process group; None: there is none.

    The program's connection serves one request at a time, and a long one of ours would hold up the program's.
    """
    try:
        torch_stores: Any = dist
        store: Any = dist.distributed_c10d._get_default_store()
        while isinstance(store, torch_stores.PrefixStore):
            store = store.underlying_store
        if hasattr(store, "clone"):
            store = store.clone()
        else:
            store = torch_stores.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
        store.set_timeout(timedelta(seconds=STORE_SECONDS))
        return store
    except Exception:
        return None


def _new_folder() -> Path:
    """Make the folder of a run. The script names it, as it does journals (``setup/describe.py``)."""
    script = Path(sys.argv[0] or "job")
    stem = script.parent.name if script.stem == "__main__" else script.stem
    name = (
        re.sub(r"[^A-Za-z0-9._-]", "-", stem)[:40] + time.strftime("-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    )
    folder = Path(os.environ.get("GRAVAC_DATA_DIR") or "gravac-runs").absolute() / "observe" / name
    make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, where they are missing. Only their owner may enter them."""
    if not folder.parent.is_dir():
        make_private(folder.parent)
    folder.mkdir(0o700, exist_ok=True)


def _judge(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that prints the verdict, with the lowest priority."""
    command = [sys.executable, "-m", "gravac_controller", "observe", str(folder)]
    nice = shutil.which("nice")
    return subprocess.Popen(
        [nice, "-n", "19", *command] if nice else command,
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False


def recording(world: int) -> range:
    """Return the ranks that record: all, or of many some that are spread evenly."""
    return range(0, world, -(-world // MOST_RANKS))


def say(what: str, folder: Path | None) -> None:
    """Print a line on stderr, and mark in the folder that something was said. Never raises."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"gravac observe: {what}\n")
        sys.stderr.flush()
        if folder is not None:
            (folder / SAID).touch()
