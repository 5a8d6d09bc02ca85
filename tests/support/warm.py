"""Ranks of torchrun that come from zygotes: ``warm_python.py`` asks for them, and here is who answers."""

import contextlib
import json
import os
import select
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support import warm_python
from tests.support.ranks.harness import zygotes
from tools.harness.forked import Forked


class WarmPython:
    """``with WarmPython(folder) as environment:`` start torchrun with that in addition to what it has.

    Only for tests of what ranks do: how the interpreter is found and started, and who ends with whom, needs real ones.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        zygotes()

    def __enter__(self) -> dict[str, str]:
        program = self._folder / "warm-python"
        program.write_text(f"#!{sys.executable} -IS\n{Path(warm_python.__file__).read_text()}")
        program.chmod(0o755)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self._folder / "door"))
        self._door.listen()
        threading.Thread(target=self._answer, daemon=True).start()
        return {"PYTHON_EXEC": str(program), warm_python.DOOR: str(self._folder / "door")}

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                asking, _ = self._door.accept()
                threading.Thread(target=_attend, args=(asking,), daemon=True).start()


def _attend(asking: socket.socket) -> None:
    with asking:
        try:
            process = _start(asking)
        except EOFError:  # torchrun ended it before it had asked
            return
        with contextlib.suppress(OSError):  # it has gone
            asking.sendall(b"%d\n" % process.pid)
            while process.poll() is None:
                if select.select([asking], [], [], 0.05)[0] and not asking.recv(1):
                    break
            else:
                asking.sendall(b"%d\n" % process.wait())
        process.kill()
        process.wait()


def _start(asking: socket.socket) -> Forked:
    """What ``python [-u] -m MODULE …`` or ``python [-u] FILE …`` would be. Raises EOFError when it ends too early."""
    head, files, _, _ = socket.recv_fds(asking, 4, 3)
    with contextlib.ExitStack() as after:
        for file in files:
            after.callback(os.close, file)
        body = b""
        while not head or len(body) < int.from_bytes(head, "big"):
            piece = asking.recv(1 << 16)
            if not piece:
                raise EOFError
            body += piece
        return _run(json.loads(body), files)


def _run(request: dict[str, Any], files: list[int]) -> Forked:
    words = [word for number, word in enumerate(request["words"]) if (number, word) != (0, "-u")]
    what = "module" if words[0] == "-m" else "script"
    name, *argv = words[1:] if what == "module" else words
    zygote = zygotes()[min(int(request["environment"].get("RANK", "0")), 1)]
    files_of = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
    environment, cwd = request["environment"], request["cwd"]
    return zygote.start(**files_of, environment=environment, argv=tuple(argv), cwd=cwd, **{what: name})
