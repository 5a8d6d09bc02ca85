"""The wheel holds the three packages, whole, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_wheel(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"gravac", "gravac_agent", "gravac_controller"}
    for package in tops:
        assert f"{package}/py.typed" in names
        assert f"{package}/__init__.py" in names
    static = ROOT / "controller/gravac_controller/static"
    for file in static.rglob("*"):
        if file.is_file():
            assert f"gravac_controller/static/{file.relative_to(static)}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
