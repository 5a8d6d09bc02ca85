"""`make new-codec` and `make new-policy`: the skeletons work, and are registered where CONTRIBUTING says."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

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


def test_a_new_codec_works(copied: Path) -> None:
    text, found = created(copied, "codec", "my-codec")
    assert "from gravac.compressors.sparse.mycodec import MyCodec\n" in text
    assert text.count("        MyCodec,\n    ),\n    base=Compressor,") == 1
    codec = found["MyCodec"]()
    assert codec.name == "my-codec"
    for cf in (1.0, 10.0):
        checks.check_bytes(codec, vector("gauss", 100), cf, torch.float32)
        checks.check_conservation(codec, vector("gauss", 100), cf, torch.float32)
        checks.check_travel(codec, vector("gauss", 100), cf, torch.float32, 1, found["MyCodec"]())


def test_a_new_policy_works(copied: Path) -> None:
    text, found = created(copied, "policy", "mypolicy")
    assert "from gravac.policies.mypolicy import MypolicyPolicy\n" in text
    assert text.count("        MypolicyPolicy,\n    ),\n    base=ConfiguredPolicy,") == 1
    run = Run(found["MypolicyPolicy"](), Cluster())
    assert run.windows(2).cf_candidate == 1.0
    assert run.policy.spec().name == "mypolicy"


def test_a_file_that_is_there_is_not_overwritten(copied: Path) -> None:
    with pytest.raises(FileExistsError):
        created(copied, "codec", "topk")
