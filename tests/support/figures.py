"""Reading what matplotlib drew from its SVG."""

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def parts(svg: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """The parts of the (only) axes whose id begins with ``kind``: ``line2d`` for lines, ``FillBetween`` for bands."""
    axes = next(node for node in svg.iter(f"{SVG}g") if node.get("id") == "axes_1")
    return [group for group in axes.findall(f"{SVG}g") if (group.get("id") or "").startswith(kind)]


def markers(svg: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The places (x, y) of the points of each line."""
    return [
        [(float(use.get("x", 0)), float(use.get("y", 0))) for use in line.iter(f"{SVG}use")]
        for line in parts(svg, "line2d")
    ]


def texts(svg: ElementTree.Element) -> set[str]:
    """All texts."""
    return {(node.text or "").strip() for node in svg.iter(f"{SVG}text")}
