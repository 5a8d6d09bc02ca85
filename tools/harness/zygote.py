"""A process that has imported what others need and forks them: a fork takes milliseconds, the imports seconds.

``python zygote.py SOCKET MODULE…``: imports the modules, then starts a process for each request that comes over the
socket whose number it is given, until that closes. A request: the length in four bytes, with four open files (standard
input, output, error, and one that receives the process id and, at the end, the exit code), then JSON: ``argv``,
``environment``, ``cwd`` and one of ``module``, to be run as ``python -m`` does, ``script``, the path of a file, or
``function`` (``module:name``) with its ``arguments``.

Nothing has run here that a fork could inherit: one thread, no loop, no gloo, random generators as at their start. What
it starts ends as any Python process does.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

Request = dict[str, Any]


def threads() -> int:
    """Those of C++ too, where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """The next request and its open files; null when there will be none."""
    head, files, _, _ = socket.recv_fds(control, 4, 4)
    if not head:
        return None
    with control.makefile("rb", buffering=0) as stream:
        wanted = int.from_bytes(head + stream.read(4 - len(head)), "big")
        body = b""
        while len(body) < wanted:
            piece = stream.read(wanted - len(body))
            if not piece:  # the caller ended in the middle of it
                return None
            body += piece
    return json.loads(body), files


def report(file: int, number: int) -> bool:
    """Write a number, and return whether anyone reads it."""
    try:
        os.write(file, f"{number}\n".encode())
    except OSError:  # the caller has ended
        return False
    return True


def serve(control: socket.socket) -> Request | None:
    """Fork for each request. Returns the request in the process that is to do it, and null in this one at the end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}  # process id: the file that receives its exit code
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for child in list(children):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    file = children.pop(child)
                    report(file, os.waitstatus_to_exitcode(status))
                    os.close(file)
        if control.fileno() in ready:
            received = receive(control)
            if received is None:
                return None
            request, (*standard, status) = received
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                for number, file in enumerate(standard):
                    os.dup2(file, number)
                for file in (*standard, status, woken, wake, *children.values()):
                    os.close(file)
                return request
            if not report(status, child):
                os.kill(child, signal.SIGKILL)  # nobody else would end it
            children[child] = status
            for file in standard:
                os.close(file)


def do(request: Request) -> None:
    """What was asked for, in a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv[1:] = request["argv"]
    if "module" in request:
        sys.path[0] = request["cwd"]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    elif "script" in request:
        sys.argv[0], sys.path[0] = request["script"], str(Path(request["script"]).parent)
        runpy.run_path(request["script"], run_name="__main__")
    else:
        module, _, name = request["function"].partition(":")
        getattr(importlib.import_module(module), name)(**request["arguments"])


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests, which end us
    with socket.socket(fileno=int(sys.argv[1])) as control:
        for name in sys.argv[2:]:
            importlib.import_module(name)
        assert threads() == 1, "a fork of a process with threads may hang"
        gc.collect()
        gc.freeze()
        request = serve(control)
    if request is None:
        os._exit(0)  # tidying up after two thousand modules takes seconds
    do(request)


if __name__ == "__main__":
    main()
