"""Download what gravac and its tests need on a GPU machine without a network: ``make gpu-wheels``.

For Python 3.12 on Linux x86-64, in the versions of ``constraints.txt``. torch and Triton are assumed to be there.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu-wheels"
PYTHON = "3.12"
THERE = {"torch": "2.11.0+cu130", "triton": "3.6.0"}
"""What the machine has."""
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
"""What its tests need beside gravac."""
GLIBC = ("_2_28", "_2_27", "_2_17", "2014", "_2_5", "1")


def requirements() -> list[str]:
    """Return what gravac depends on, without what the machine has."""
    declared: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [line for line in declared if not line.startswith(tuple(f"{name}>" for name in THERE))]


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    target += [f"--platform=manylinux{glibc}_x86_64" for glibc in GLIBC]
    where = [f"--constraint={ROOT / 'constraints.txt'}", f"--dest={FOLDER}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *target, *where, *requirements(), *TESTS]
    code = subprocess.run(command, check=False).returncode
    found = list(FOLDER.glob("*.whl"))
    size = sum(file.stat().st_size for file in found) / 1e6
    print(f"{FOLDER}: {len(found)} wheels, {size:.1f} MB")
    return code


if __name__ == "__main__":
    sys.exit(main())
