"""The columns of a window are those of the page, in its order."""

import re
from pathlib import Path

from gravac_controller.cli import main
from gravac_controller.views.columns import NAMES

STATIC = Path(main.callback.__code__.co_filename).parents[1] / "page" / "static"  # type: ignore[union-attr]


def test_the_page_has_the_same_columns() -> None:
    rows = (STATIC / "rows.js").read_text()
    listed = re.search(r"COLUMNS = \[(.*?)\n\];", rows, re.DOTALL)
    phases = re.search(r"PHASES = \[(.*?)\]", rows)
    assert listed
    assert phases
    names = re.findall(r'\["(\w+)", "\w+"\]', listed[1])
    names += [f"{phase}_seconds" for phase in re.findall(r'"(\w+)"', phases[1])]
    assert tuple(names) == NAMES
