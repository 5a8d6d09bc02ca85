"""The bundle of the page has every module, and says which it does not know."""

import re
from pathlib import Path

import pytest

from gravac_controller.page.files import STATIC, CannotBundle, bundle


def test_every_module_of_the_page_is_in_the_bundle() -> None:
    text = bundle(STATIC)
    for module in STATIC.glob("*.js"):
        if module.name != "early.js":
            assert text.count(f'modules["{module.name}"] = ') == 1
    assert not re.search(r"^(?:import|export)\b", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('import { a } from "./other.js";\n', "in a circle"),
        ("export default 1;\n", "export default"),
        ('import other from "./other.js";\n', "import other"),
    ],
)
def test_what_the_bundle_does_not_know_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "main.js").write_text(text)
    (tmp_path / "other.js").write_text('import { b } from "./main.js";\n')
    with pytest.raises(CannotBundle, match=why):
        bundle(tmp_path)
