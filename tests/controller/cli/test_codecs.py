"""``gravac codecs``: names everything that is registered, says what is known of one, and is data for machines."""

import json
import re
import sys

import pytest
from click.testing import CliRunner

from gravac.aggregators import AGGREGATORS
from gravac.catalogue import CatalogueEntry, catalogue
from gravac.collectives import COLLECTIVES
from gravac.compressors import COMPRESSORS
from gravac.memories import MEMORIES
from gravac.policies import POLICIES
from gravac_controller.cli import main

REGISTRIES = {
    "Compressors": COMPRESSORS,
    "Aggregators": AGGREGATORS,
    "Error memories": MEMORIES,
    "Collectives": COLLECTIVES,
    "Policies": POLICIES,
}
ENTRIES = catalogue()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["codecs", *arguments])
    return result.exit_code, result.output


def test_every_registered_name_stands_under_its_kind_on_a_line_of_its_own() -> None:
    code, output = run()
    assert code == 0
    assert "\x1b" not in output  # plain, without a terminal
    for section in output.split("\n\n"):
        title, *rows = section.splitlines()
        registry = REGISTRIES.pop(title.partition(":")[0])
        groups: dict[str, list[str]] = {"": []}
        for row in rows:
            if row in ("Chosen by auto:", "From the papers:"):
                groups[row] = []
            elif not row.startswith(("Name", " ")):
                groups[list(groups)[-1]].append(row.split()[0])
        listed = [name for group in groups.values() for name in group]
        assert sorted(listed) == sorted(registry)
        assert all(group == [name for name in registry if name in group] for group in groups.values())
        if registry is COMPRESSORS:
            chosen = {"dense", "topk", "bf16", "int8", "nearest", "twobit", "dither", "dither-subtractive"}
            assert set(groups["Chosen by auto:"]) == chosen
    assert not REGISTRIES
    assert output == "\n".join(line.rstrip() for line in output.split("\n"))


def test_json_round_trip() -> None:
    code, output = run("--json")
    assert code == 0
    read = [
        CatalogueEntry.model_validate_json(json.dumps(member)) for member in json.loads(output)["members"]
    ]
    assert tuple(read) == ENTRIES
    code, output = run("--json", "topk")
    (one,) = json.loads(output)["members"]
    assert CatalogueEntry.model_validate_json(json.dumps(one)).name == "topk"


def test_a_name_of_two_kinds_shows_both() -> None:
    _, output = run("dense")
    assert "dense (compressor)" in output
    assert "dense (policy)" in output


def test_bytes_and_bounds() -> None:
    _, output = run("topk")
    assert re.search(r"^ *1000 +10 +10 +466 B +\(1−0.1\)·‖x‖²$", output, re.MULTILINE)
    _, output = run("all-reduce")
    assert re.search(r"Link of 8 ranks\n +1000 +10 +10 +4 kB +7 kB$", output, re.MULTILINE)


def test_two_codecs_combined_are_both_shown() -> None:
    code, output = run("topk+bf16")
    assert code == 0
    assert "topk (compressor)" in output
    assert "bf16 (compressor)" in output
    code, output = run("topk+residual")
    assert code == 2
    assert "no entry is named 'topk+residual'" in output


def test_an_unknown_name_is_an_error_that_helps() -> None:
    code, output = run("topq")
    assert code == 2
    assert "no entry is named 'topq'" in output
    assert "Did you mean topk" in output
    assert "`gravac codecs`" in output
    code, output = run("--json", "zzzzzz")
    assert code == 2
    assert "Did you mean" not in output


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gravac.catalogue")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, output = run()
    assert code == 1
    assert "torch, which is not installed" in output
