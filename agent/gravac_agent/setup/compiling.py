"""Compiles kernels in a process that ends, because the compiler stays in the memory of the one that used it."""

import logging
import os
import subprocess
import sys

log = logging.getLogger("gravac.agent")
_PROGRAM = "from gravac.kernels import backend; backend.use('cpu')"


def compile_elsewhere() -> None:
    """Fill the cache of compiled kernels. Where that fails, this process compiles them."""
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        log.debug("kernels could not be compiled in a process of their own: %s", done.stderr[-2000:])
