"""The kernel's source as text: split by directory, kept, and refused where it cannot be read."""

import io
import tarfile
from pathlib import Path

import pytest

from gravac_lab.tasks import TaskError, make
from gravac_lab.tasks.data import linux


def kernel(folder: Path) -> Path:
    """An archive as Debian packages the kernel, of one letter a file."""
    files = {
        "README": b"r",
        "fs/a.c": b"a",
        "fs/notes.txt": b"n",
        "fs/nls/table.c": b"t",
        "mm/deep/er/h.h": b"h",
        "kernel/k.c": b"k",
        "kernel/huge.c": b"u" * 30,
        "drivers/d.c": b"d",
    }
    archive = folder / "linux-source-0.0.tar.xz"
    with tarfile.open(archive, "w:xz") as tree:
        for name, content in files.items():
            member = tarfile.TarInfo(f"linux-source-0.0/{name}")
            member.size = 10_000 * len(content)
            tree.addfile(member, io.BytesIO(content * 10_000))
    return archive


def test_the_kernel_is_split_by_directory_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, kept = kernel(tmp_path), tmp_path / "cache"
    train, heldout = linux.read(archive, kept)
    assert (train, heldout) == (b"a" * 10_000 + b"k" * 10_000, b"h" * 10_000)
    monkeypatch.setattr(linux, "_extract", lambda archive: [b"again" * 9_000, b"!" * 10_000])
    assert linux.read(archive, kept) == (train, heldout), "read from the cache"
    (file,) = kept.iterdir()
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert linux.read(archive, kept)[0] == b"again" * 9_000, "a damaged file is made again"
    assert not set(linux.TRAIN) & set(linux.HELDOUT)


def test_a_kernel_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "ARCHIVE", tmp_path / "missing.tar.xz")
    with pytest.raises(TaskError, match=r"apt-get install linux-source-6\.1"):
        linux.read()
    assert make("lm:width=8").data.source.startswith("standard library"), "auto takes what is there"
    (tmp_path / "cut.tar.xz").write_bytes(kernel(tmp_path).read_bytes()[:200])
    with pytest.raises(TaskError, match=r"cut\.tar\.xz cannot be read"):
        linux.read(tmp_path / "cut.tar.xz", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
