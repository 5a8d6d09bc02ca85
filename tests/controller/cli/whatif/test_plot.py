"""The plot that ``gravac whatif --plot`` writes."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gravac_controller.cli.whatif.plot import Series, chart
from tests.support.figures import SVG, markers, texts


def drawn(path: Path, *series: Series, title: str = "t") -> ElementTree.Element:
    chart(title, "x", series, "{:g}".format, path)
    return ElementTree.parse(path).getroot()


def test_both_axes_are_logarithmic_and_y_grows_upward(tmp_path: Path) -> None:
    (points,) = markers(drawn(tmp_path / "a.svg", Series(name="a", points=[(1, 1), (10, 10), (100, 100)])))
    right = [b[0] - a[0] for a, b in pairwise(points)]
    up = [a[1] - b[1] for a, b in pairwise(points)]
    assert right[0] == pytest.approx(right[1], abs=0.2)
    assert right[0] > 0
    assert up[0] == pytest.approx(up[1], abs=0.2)
    assert up[0] > 0


def test_foreign_text_is_text(tmp_path: Path) -> None:
    svg = drawn(tmp_path / "a.svg", Series(name="<b>& $x$", points=[(1, 1)]), title="</svg><script>")
    assert svg.find(f"{SVG}script") is None
    assert {"</svg><script>", "<b>& $x$"} <= texts(svg)


def test_one_point_and_many_series_fit(tmp_path: Path) -> None:
    """The legend may not push the axes out of the figure."""
    svg = drawn(tmp_path / "a.svg", *(Series(name=str(n), points=[(5, 7)], color=n) for n in range(40)))
    places = markers(svg)
    assert len(places) == 40
    assert len({point for line in places for point in line}) == 1


def test_a_sweep_of_many_values_labels_some(tmp_path: Path) -> None:
    points = [(float(2**n), 1.0 + n) for n in range(30)]
    svg = drawn(tmp_path / "a.svg", Series(name="a", points=points))
    assert 5 <= len({f"{x:g}" for x, _ in points} & texts(svg)) <= 12


@pytest.mark.parametrize("points", [[], [(1.0, 0.0)], [(0.0, 1.0)]])
def test_nothing_to_draw_is_said(tmp_path: Path, points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        drawn(tmp_path / "a.svg", Series(name="a", points=points))
