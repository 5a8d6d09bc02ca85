"""A ``python`` for torchrun, named by ``PYTHON_EXEC``: its ranks come from zygotes, without imports.

``python -m torch.distributed.run …`` starts what PYTHON_EXEC names instead of the interpreter. That is this file: it
hands its open files, arguments and surroundings to the tests' process (``WarmPython``), which has them run, and is from
then on what torchrun sees of the rank: signals go through, the exit code comes back, and the rank ends when it does.
"""

import contextlib
import json
import os
import signal
import socket
import sys

DOOR = "WARM_PYTHON_DOOR"
"""Names the socket of the tests' process."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    door = socket.socket(socket.AF_UNIX)
    door.connect(os.environ.pop(DOOR))
    body = json.dumps({"words": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd()}).encode()
    socket.send_fds(door, [len(body).to_bytes(4, "big")], [0, 1, 2])
    door.sendall(body)
    answers = door.makefile("rb", buffering=0)
    child = int(answers.readline())

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
