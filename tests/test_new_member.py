"""`make new-codec`, `new-memory` and `new-policy`: the skeletons work, and are registered where CONTRIBUTING says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac.offers import UNKNOWN
from tests.support.maths import checks
from tests.support.maths.checks import vector
from tools import new
from tools.harness.cluster import Cluster, Run

ROOT = Path(__file__).parent.parent


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the program changes."""
    for folder in ("gravac/compressors", "gravac/policies"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(new, "ROOT", tmp_path)
    return tmp_path


def created(copied: Path, kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """The registry's text afterwards, and what the new file defines."""
    registry = copied / new.KINDS[kind].registry.relative_to(ROOT)
    new.create(new.KINDS[kind]._replace(registry=registry), name)
    found: dict[str, Any] = {"__name__": "skeleton"}
    exec(new.path_of(new.KINDS[kind], name).read_text(), found)
    return registry.read_text(), found


@pytest.mark.distributed
@pytest.mark.parametrize(("kind", "room"), [("quantizer", "quantize"), ("sparsifier", "sparse")])
def test_a_new_codec_works(copied: Path, kind: str, room: str) -> None:
    text, found = created(copied, kind, "my-codec")
    assert f"from gravac.compressors.{room}.mycodec import MyCodec\n" in text
    assert text.count("        MyCodec,\n    ),\n    base=Compressor,") == 1
    codec = found["MyCodec"]()
    assert codec.name == "my-codec"
    assert codec.offer == UNKNOWN, "unknown to auto until somebody states what it keeps"
    for cf in (1.0, 10.0):
        checks.check_bytes(codec, vector("gauss", 100), cf, torch.float32)
        checks.check_conservation(codec, vector("gauss", 100), cf, torch.float32)
        checks.check_travel(codec, vector("gauss", 100), cf, torch.float32, 1, found["MyCodec"]())


@pytest.mark.distributed
def test_the_offer_of_a_new_codec_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller, which imports no codec, reads it there."""
    shutil.copytree(ROOT / "gravac", tmp_path / "gravac", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(new, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    created(tmp_path, "quantizer", "my-codec")
    new.write_pages()
    before, after = (json.loads((folder / "gravac/offers.json").read_text()) for folder in (ROOT, tmp_path))
    assert after == {**before, "my-codec": {}}
    assert "my-codec" in (tmp_path / "docs/catalogue.md").read_text()


CHOOSES = """
import json, os, runpy, sys
import torch

file, kind, offers = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
skeleton = open(file).read()
for offer in offers:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    with open(file, "w") as opened:
        opened.write(skeleton.replace("Offer()", f"Offer({offer})"))
    from gravac.compressors import COMPRESSORS

    runpy.run_module("tools.pages.offers", run_name="__main__")
    from gravac.offers import of, own
    from tools.harness.plan_world import Job, World

    assert own()["toy"] == of("toy") == COMPRESSORS["toy"].offer, "the page has it"
    job = Job(World(ranks=4, megabits=100.0 if kind == "sparsifier" else 2_000.0, compute=0.05))
    job.windows(12)
    print(job.last.phase, "toy" == job.plan.codec, flush=True)
    os._exit(0)
"""
GOOD, BAD = "(0.99, 1.0, 1.0)", "(0.5, 0.6, 0.7)"
OFFERS = {
    "sparsifier": {  # on a slow link
        f"strengths=(50.0,), sgd={{50.0: {GOOD}}}": True,
        f"strengths=(50.0,), sgd={{50.0: {BAD}}}": False,
        f"strengths=(2.0,), sgd={{2.0: {GOOD}}}": False,
        "strengths=(50.0,)": False,
    },
    "quantizer": {  # on a fast one, where coding counts
        f'plans={{"": 3.8}}, encode_ns=0.1, decode_ns=0.1, sgd={{3.8: {GOOD}}}': True,
        f'plans={{"": 3.8}}, encode_ns=60.0, decode_ns=0.1, sgd={{3.8: {GOOD}}}': False,
        f'listed={{"": 3.8}}, encode_ns=0.1, decode_ns=0.1, sgd={{3.8: {GOOD}}}': False,
    },
}


@pytest.mark.distributed
@pytest.mark.parametrize("kind", list(OFFERS))
def test_auto_chooses_a_new_codec_for_what_its_own_file_states(tmp_path: Path, kind: str) -> None:
    """Efficiency, size and coding time, in a copy of gravac in which only that file is edited."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "gravac", tmp_path / "gravac", ignore=ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new, "ROOT", tmp_path)
        created(tmp_path, kind, "toy")
        file = new.path_of(new.KINDS[kind], "toy")
    done = subprocess.run(
        [sys.executable, "-B", "-c", CHOOSES, str(file), kind, json.dumps(list(OFFERS[kind]))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"hold {chosen}" for chosen in OFFERS[kind].values()], done.stderr


SENDS_DOUBLE = """    transforms = True
    part = DoublesPart
"""
DOUBLES = """class DoublesPart(FlatMemory):
    \"\"\"Send twice the gradient.\"\"\"

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        return None

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        residual, _, p = super().pending_sum(gradient, dense=dense)
        p.copy_(gradient).mul_(2.0)
        self.sum_written()
        return p if residual is None else p.add_(residual)


class DoublesMemory(Memory)"""


@pytest.mark.distributed
def test_the_suite_of_memories_judges_new_ones_without_an_edit(tmp_path: Path) -> None:
    """The skeleton made to lose small elements, and one that transforms, in a copy of gravac."""
    shutil.copytree(ROOT / "gravac", tmp_path / "gravac", ignore=shutil.ignore_patterns("__pycache__"))
    changes = {
        "doubles": {
            "import Memory": "import Memory, PendingSum",
            "class DoublesMemory(Memory)": DOUBLES,
            "    part = DoublesPart\n": SENDS_DOUBLE,
        },
        "loses": {"1e-30": "2.0"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new, "ROOT", tmp_path)
        for name, pairs in changes.items():
            registry, _ = created(tmp_path, "memory", name)
            file = new.path_of(new.KINDS["memory"], name)
            for old, replaced in pairs.items():
                file.write_text(file.read_text().replace(old, replaced))
    assert registry.count("        LosesMemory,\n    ),\n    base=Memory,") == 1
    shown = (ROOT / "CONTRIBUTING.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert shown in new.MEMORY.format(Name="Mymemory", name="mymemory")
    suite, names = str(ROOT / "tests/gravac/memories/test_base.py"), "doubles or loses and not another_memory"
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            "-m",
            "pytest",
            "-q",
            "--tier",
            "fast",
            "-o",
            f"pythonpath={tmp_path}",
            "-k",
            names,
            suite,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GRAVAC_KERNELS": "reference"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED \S+::(\w+)\[(\S+)\]", done.stdout, re.MULTILINE)
    assert failed == [("test_exact_memories_lose_nothing", "loses")], done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 60


@pytest.mark.distributed
def test_a_new_policy_works(copied: Path) -> None:
    text, found = created(copied, "policy", "mypolicy")
    assert "from gravac.policies.mypolicy import MypolicyPolicy\n" in text
    assert text.count("        MypolicyPolicy,\n    ),\n    base=ConfiguredPolicy,") == 1
    run = Run(found["MypolicyPolicy"](), Cluster())
    assert run.windows(2).cf_candidate == 1.0
    assert run.policy.spec().name == "mypolicy"


@pytest.mark.distributed
def test_a_new_collective_is_one_file_and_its_name(tmp_path: Path) -> None:
    """In a copy of gravac, the suites as they are take it up, and it passes them."""
    shutil.copytree(ROOT / "gravac", tmp_path / "gravac", ignore=shutil.ignore_patterns("__pycache__"))
    room = tmp_path / "gravac/collectives"
    shutil.copy(ROOT / "tests/support/maths/relay.py", room)
    registry = (room / "choice.py").read_text()
    registry, count = re.subn(r"(COLLECTIVES: .*\([^)]*)\)", r"\1, Relay)", registry)
    assert count == 1
    imported = "from gravac.collectives.relay import Relay\n"
    (room / "choice.py").write_text(
        registry.replace("from gravac.registry", f"{imported}from gravac.registry")
    )
    suites = ("aggregators/test_base", "test_no_elements", "test_catalogue")
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-B",
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                "relay or catalogue",
            ),
            *(str(ROOT / f"tests/gravac/{suite}.py") for suite in suites),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 50, done.stdout


def test_a_file_that_is_there_is_not_overwritten(copied: Path) -> None:
    with pytest.raises(FileExistsError):
        created(copied, "sparsifier", "topk")
