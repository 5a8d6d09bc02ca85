"""The figure of a report: text stays text, gaps are gaps, and long names differ."""

import re
from pathlib import Path
from xml.etree import ElementTree

from gravac_controller.report.figure import LONGEST_NAME, Lines, write_figure
from tests.support.figures import texts


def test_text_in_the_figure_stays_text(tmp_path: Path) -> None:
    names = ["<script>&", "$x^2$ _", "_hidden"]
    jobs = [Lines(name, first=[0], steps=[9], cfs=[1], gains=[0.5]) for name in names]
    write_figure(jobs, tmp_path / "it.svg", "svg")
    root = ElementTree.parse(tmp_path / "it.svg").getroot()
    assert set(names) <= texts(root)


def test_an_unknown_gain_leaves_a_gap() -> None:
    line = Lines("a", first=[0, 10, 20], steps=[9, 19, 29], cfs=[1, 1, 10], gains=[0.5, None, 0.4])
    assert [step for step, gain in line.gain_line() if gain == gain] == [9, 29]
    assert line.factor_line() == [(0, 1), (19, 1), (20, 10), (29, 10)]


def test_long_names_still_differ_in_the_figure(tmp_path: Path) -> None:
    names = ["a" * 64, "a" * 60 + " (2)"]
    write_figure([Lines(name, [0], [9], [1], [1]) for name in names], tmp_path / "it.svg", "svg")
    shown = re.findall(r">(a+…[^<]*)<", (tmp_path / "it.svg").read_text())
    assert len(set(shown)) == 2
    assert all(len(name) <= LONGEST_NAME for name in shown)
