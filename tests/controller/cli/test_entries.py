"""Entries of the catalogue as lines: each of its own, with the smaller of two proven errors."""

import re

import pytest

from gravac.catalogue import Cost, catalogue
from gravac_controller.cli import entries
from tests.controller.cli.test_codecs import run

ENTRIES = catalogue()


def test_no_two_members_of_a_kind_have_the_same_line() -> None:
    lines = [(entry.kind, entries.what(entry, ENTRIES)) for entry in ENTRIES]
    assert len(set(lines)) == len(lines), {line for line in lines if lines.count(line) > 1}


@pytest.mark.parametrize("name", sorted({entry.name for entry in ENTRIES}))
def test_one_member_in_full(name: str) -> None:
    code, output = run(name)
    assert code == 0
    for entry in ENTRIES:
        if entry.name != name:
            continue
        assert f"{name} ({entry.kind})" in output
        assert entry.source in output
        assert entries.use(entry) in output
        for setting in entry.settings:
            assert re.search(rf"^{setting.name} ", output, re.MULTILINE)
        for trait in entry.traits:
            assert trait.replace("_", " ") in output
        for cost in entry.costs:
            assert str(cost.numel) in output


@pytest.mark.parametrize(
    ("proven", "text"),
    [
        ({}, ""),
        ({"delta": 1.0}, "0"),
        ({"delta": 0.25}, "(1−0.25)·‖x‖²"),
        ({"omega": 7.5}, "7.5·‖x‖²"),
        ({"delta": 0.01, "omega": 0.5}, "0.5·‖x‖²"),
        ({"delta": 0.9, "omega": 0.5}, "0.1·‖x‖²"),
        ({"delta": 0.9999961853027344, "absolute": 2.1e-78}, "3.81e-06·‖x‖²"),
        ({"absolute": 2.0}, "2"),
        ({"omega": 0.5, "absolute": 2.0}, "0.5·‖x‖² + 2"),
    ],
)
def test_the_smaller_of_two_proven_errors_is_told(proven: dict[str, float], text: str) -> None:
    empty = dict.fromkeys(Cost.model_fields) | {"numel": 10}
    assert entries.bound(Cost(**(empty | proven))) == text  # type: ignore[arg-type]
