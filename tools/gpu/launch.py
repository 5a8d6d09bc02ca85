"""Ranks on one machine, each a process of its own with a time limit; several may share one GPU.

NCCL refuses two ranks on one GPU unless it takes them for different hosts (``NCCL_HOSTID``), or from 2.30 on is asked
to allow it. Their messages then go over sockets of the loopback interface, which makes a slow link. NVIDIA does not
support this, so nothing here waits without a limit.
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

Device = Literal["cuda", "cpu"]
Backend = Literal["nccl", "gloo"]
ROOT = Path(__file__).parents[2]
ON_ONE_GPU = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MAX_CTAS": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}
"""Settings of NCCL for several ranks on one GPU; every rank has an ``NCCL_HOSTID`` of its own besides."""
LAST_CHARACTERS = 4000
"""Of a failed rank's output in the message."""


class RanksFailed(Exception):
    """A rank failed, or did not end in time. The message holds the end of every rank's output.

    Args:
        message: What happened.
        outputs: All that each rank wrote.
    """

    def __init__(self, message: str, outputs: list[str]) -> None:
        super().__init__(message)
        self.outputs = outputs


def run_ranks(
    function: str,
    /,
    *,
    device: Device,
    backend: Backend,
    world: int,
    seconds: float,
    **arguments: Any,
) -> list[Any]:
    """Call a function on every rank of a process group.

    Args:
        function: ``module:function``; called with the device (a ``torch.device``) and ``arguments``. What it returns
            must be JSON.
        device: Where tensors are: all ranks use GPU 0, or the CPU.
        backend: Of the process group.
        world: Number of ranks.
        seconds: Until all of them are killed.
        arguments: Of the function; must be JSON.

    Returns:
        What each rank returned.

    Raises:
        RanksFailed: One of them failed, or time is up.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ranks = [
            _start(folder, rank, environment(rank, world, device), function, device, backend, arguments)
            for rank in range(world)
        ]
        try:
            _wait(ranks, time.monotonic() + seconds)
        finally:
            for process in ranks:
                _kill(process)
        results = [folder / f"{rank}.json" for rank in range(world)]
        if any(process.returncode for process in ranks) or not all(file.exists() for file in results):
            codes = [process.returncode for process in ranks]
            outputs = [(folder / f"{rank}.log").read_text(errors="replace") for rank in range(world)]
            said = "\n".join(
                f"--- rank {rank}\n{text[-LAST_CHARACTERS:]}" for rank, text in enumerate(outputs)
            )
            what = f"{function} on {world} ranks, at most {seconds:g} s: exit codes {codes}"
            raise RanksFailed(f"{what}\n{said}", outputs)
        return [json.loads(file.read_text()) for file in results]


def environment(rank: int, world: int, device: Device) -> dict[str, str]:
    """Return the environment of one rank. Variables that choose how gravac behaves do not reach it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRAVAC_", "NCCL_"))}
    kept |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT), *(path for path in sys.path if path))),
    }
    if device == "cpu":
        kept["OMP_NUM_THREADS"] = "1"
    elif world > 1:
        kept |= ON_ONE_GPU | {"NCCL_HOSTID": f"gravac-rank-{rank}"}
    return kept


def _start(
    folder: Path,
    rank: int,
    surroundings: dict[str, str],
    function: str,
    device: Device,
    backend: Backend,
    arguments: dict[str, Any],
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tools.gpu.launch", function, "--device", device, "--backend", backend]
    command += ["--arguments", json.dumps(arguments), "--result", str(folder / f"{rank}.json")]
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=surroundings, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait(ranks: "list[subprocess.Popen[bytes]]", until: float) -> None:
    """Wait until all have ended, one has failed, or time is up."""
    while time.monotonic() < until:
        codes = [process.poll() for process in ranks]
        if None not in codes:
            return
        if any(codes):
            time.sleep(1.0)  # the others' messages say more than that a peer is gone
            return
        time.sleep(0.05)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(arguments: list[str]) -> None:
    """Be one rank: join the group, call the function, write what it returns."""
    parser = argparse.ArgumentParser(prog="tools.gpu.launch", description=main.__doc__)
    parser.add_argument("function")
    parser.add_argument("--device", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--arguments", type=json.loads, required=True)
    parser.add_argument("--result", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    code = 1
    try:
        import torch
        import torch.distributed as dist

        device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(1)
        # By a file: another test may take a port between the moment when it was free and this one.
        store = (chosen.result.absolute().parent / "store").as_uri()
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        dist.init_process_group(
            chosen.backend, store, timeout=timedelta(seconds=120), rank=rank, world_size=world
        )
        module, _, name = chosen.function.partition(":")
        found = getattr(importlib.import_module(module), name)(device, **chosen.arguments)
        # Without its device, NCCL guesses one by the rank.
        dist.barrier(device_ids=[0] if chosen.backend == "nccl" else None)
        chosen.result.write_text(json.dumps(found))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of gloo and NCCL outlive the group and may stop the interpreter from ending


if __name__ == "__main__":
    main(sys.argv[1:])
