"""The compiled kernels as functions, without numba, which would take 26 MiB of each process and a second of its start.

``build`` makes their code in a process that ends, and a file keeps it. llvmlite puts it into memory. That takes 5 MiB
of a process, and 30 MiB that all processes of a machine share.
"""

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

log = logging.getLogger("gravac.kernels")
_TYPES = {
    "P": ctypes.c_void_p,
    "q": ctypes.c_int64,
    "i": ctypes.c_int32,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "-": None,
}
_CPU = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
"""What /proc/cpuinfo says of the instructions of a processor."""
_FOLDER = Path(__file__).parent
_linked: list[Any] = []
"""What holds the code, as long as the process lives."""


def load(compiler: Callable[[], bytes] | None) -> SimpleNamespace:
    """Return all kernels, as functions of that name. A call lets other threads run. Compile them if no file has them.

    Raises:
        Exception: They cannot be compiled.
    """
    try:
        name = _name()
    except PackageNotFoundError as error:
        raise ImportError(f"{error.name} is not installed") from None
    kinds, code = _read(name, compiler)
    address_of = _link(code)
    functions = SimpleNamespace()
    for name, kind in kinds.items():
        types: list[Any] = [_TYPES[letter] for letter in kind]
        signature = ctypes.CFUNCTYPE(*types)  # the result comes first
        setattr(functions, name, signature(address_of(name)))
    return functions


def main() -> None:
    """Write all kernels to the output, compiled in this process. Of several that want them at once, one compiles."""
    name = _name()
    with _turn(name):
        made = _whole(name, None)
    sys.stdout.buffer.write(made)  # others need not wait until it is read


def _link(code: bytes) -> Callable[[str], int]:
    """Put an object file into memory, ready to run. Return what gives the address of each of its functions."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _linked.append(engine)
    address_of: Callable[[str], int] = engine.get_function_address
    return address_of


def _read(name: str, compiler: Callable[[], bytes] | None) -> tuple[dict[str, str], bytes]:
    """Return the types of all kernels and an object file: from a file of that name, or compiled now."""
    return _parsed(_whole(name, compiler))


def _whole(name: str, compiler: Callable[[], bytes] | None) -> bytes:
    if (kept := _kept(name)) is not None:
        return kept
    made = _compiled(compiler)
    if _kept(name) is None:
        _keep(name, made)
    return made


def _kept(name: str) -> bytes | None:
    for folder in folders():
        with contextlib.suppress(OSError, ValueError):
            made = (folder / name).read_bytes()
            _parsed(made)
            return made
    return None


def _keep(name: str, made: bytes) -> None:
    problems = []
    for folder in folders():
        part = folder / f"{name}.{os.getpid()}"  # several ranks may write at once
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(made)
            part.replace(folder / name)
            return
        except OSError as error:
            problems.append(str(error))
            with contextlib.suppress(OSError):
                part.unlink()
    log.warning(
        "compiled kernels cannot be kept, so each start compiles them again (%s): set NUMBA_CACHE_DIR to a folder that "
        "can be written",
        "; ".join(problems),
    )


@contextlib.contextmanager
def _turn(name: str) -> Iterator[None]:
    """Wait while another process compiles the same. Without a folder that can be written nobody waits."""
    with contextlib.ExitStack() as held:
        for folder in folders():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                file = held.enter_context((folder / f"{name}.lock").open("wb"))
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    fcntl.lockf(file, fcntl.LOCK_EX)
                    held.close()  # where the other could not keep what it made, the rest compiles at once, not in turn
                break
        yield


def _parsed(made: bytes) -> tuple[dict[str, str], bytes]:
    """Return what a file holds. Raises ValueError if it is not whole."""
    head, _, code = made.partition(b"\n")
    header = json.loads(head)
    if sha256(code).hexdigest() != header["digest"]:
        raise ValueError("the file of kernels is damaged")
    return header["kernels"], code


def _compiled(compiler: Callable[[], bytes] | None) -> bytes:
    """Compile all kernels elsewhere, or else in this process."""
    if compiler is not None:
        try:
            made = compiler()
            _parsed(made)
            return made
        except Exception as error:
            log.debug("kernels could not be compiled in a process of their own: %s", error)
    from gravac.kernels.cpu import build

    return build.compile_all()


def _name() -> str:
    return f"kernels-{_key()}.bin"


def _key() -> str:
    """Return a digest of all that the machine code depends on."""
    above = _FOLDER.parent
    sources = sorted((*_FOLDER.glob("*.py"), *(above / "entropy").glob("*.py"), above / "reference.py"))
    parts = [source.read_bytes() for source in sources]
    parts += [version(package).encode() for package in ("numba", "llvmlite")]
    parts += [sys.version.encode(), platform.machine().encode(), _cpu().encode()]
    return sha256(b"\0".join(parts)).hexdigest()[:32]


def _cpu() -> str:
    """Return what instructions this processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.partition(":")[0].strip() in _CPU)
    except OSError:
        import llvmlite.binding as llvm

        return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def folders() -> Iterator[Path]:
    """Yield where kernels are kept, and what was measured of them: the first that can be written."""
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(folder)
    yield _FOLDER / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gravac"
