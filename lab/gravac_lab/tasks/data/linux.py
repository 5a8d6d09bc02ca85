"""The source of the Linux kernel as Debian packages it, split by directory."""

import tarfile
from pathlib import Path

from gravac_lab.tasks.data.cache import cached
from gravac_lab.tasks.recipe import TaskError

PACKAGE = "linux-source-6.1"
ARCHIVE = Path(f"/usr/src/{PACKAGE}.tar.xz")
TRAIN = ("block", "fs", "ipc", "kernel", "security")
HELDOUT = ("mm",)
"""Directories below the root. They share no file; the generated tables of drivers are left out."""
MAX_FILE_BYTES = 200_000
"""Larger files are mostly tables of numbers."""
SKIPPED = ("fs/nls/", "fs/unicode/")
"""Character tables."""
MIN_BYTES = 10_000


def read(archive: Path | None = None, within: Path | None = None) -> tuple[bytes, bytes]:
    """Read the ``.c`` and ``.h`` files of ``TRAIN`` and ``HELDOUT``, in the archive's order.

    The first call reads all of the archive (about 20 s) and keeps a file of about 50 MB in the cache.

    Args:
        archive: Of the tree; None: ``ARCHIVE``.
        within: Folder of the cache; None: the user's.

    Returns:
        Training and held-out bytes.

    Raises:
        TaskError: The archive is missing or is not one of the kernel.
    """
    archive = ARCHIVE if archive is None else archive
    try:
        size = archive.stat().st_size
    except OSError:
        raise TaskError(
            f"text=linux reads {archive}, which is missing: apt-get install {PACKAGE}, or take text=python"
        ) from None
    key = f"{archive.name} {size} {TRAIN} {HELDOUT} {MAX_FILE_BYTES} {SKIPPED}"
    train, heldout = cached(f"{archive.name.split('.')[0]}.text", key, lambda: _extract(archive), within)
    if min(len(train), len(heldout)) < MIN_BYTES:
        raise TaskError(
            f"{archive} has no source of the Linux kernel: reinstall {PACKAGE}, or take text=python"
        )
    return train, heldout


def _extract(archive: Path) -> list[bytes]:
    parts: dict[str, list[bytes]] = {name: [] for name in (*TRAIN, *HELDOUT)}
    try:
        with tarfile.open(archive, "r|*") as tree:
            for member in tree:
                inside = member.name.partition("/")[2]
                directory, slash, _ = inside.partition("/")
                if (
                    slash
                    and directory in parts
                    and member.isfile()
                    and inside.endswith((".c", ".h"))
                    and member.size <= MAX_FILE_BYTES
                    and not inside.startswith(SKIPPED)
                    and (file := tree.extractfile(member)) is not None
                ):
                    parts[directory].append(file.read())
    except (tarfile.TarError, OSError, EOFError) as error:
        raise TaskError(
            f"{archive} cannot be read ({error}): reinstall {PACKAGE}, or take text=python"
        ) from None
    return [b"".join(text for name in names for text in parts[name]) for names in (TRAIN, HELDOUT)]
