"""The chart that commands write."""

from xml.etree import ElementTree

import pytest

from gravac_controller.cli.whatif.svg import Series, chart

NAMES = "{http://www.w3.org/2000/svg}"


def drawn(*series: Series, title: str = "t") -> ElementTree.Element:
    return ElementTree.fromstring(chart(title, "x", "y", series, "{:g}".format))


def at(svg: ElementTree.Element, number: int = 0) -> list[tuple[float, float]]:
    line = svg.findall(f"{NAMES}polyline")[number].get("points", "")
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())]


def test_both_axes_are_logarithmic_and_y_grows_upwards() -> None:
    points = at(drawn(Series(name="a", points=[(1, 1), (10, 10), (100, 100)])))
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert x2 > x0
    assert y2 < y0


def test_foreign_text_is_text() -> None:
    svg = drawn(Series(name="<b>&", points=[(1, 1)]), title="</svg><script>")
    assert svg.find(f"{NAMES}script") is None
    texts = [each.text for each in svg.iter(f"{NAMES}text")]
    assert {"</svg><script>", "<b>&"} <= set(texts)


def test_one_point_and_many_series_fit() -> None:
    svg = drawn(*(Series(name=str(n), points=[(5, 7)], colour=n) for n in range(40)))
    legend = [float(each.get("y", 0)) for each in svg.iter(f"{NAMES}text") if (each.text or "").isdigit()]
    assert max(legend) < float(svg.get("height", 0))
    assert at(svg, 39) == at(svg, 0)


@pytest.mark.parametrize("points", [[], [(1.0, 0.0)], [(0.0, 1.0)]])
def test_nothing_to_draw_is_said(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        drawn(Series(name="a", points=points))
