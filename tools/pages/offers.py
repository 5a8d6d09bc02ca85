"""Writes gravac/offers.json, what gravac's own codecs state to policy ``auto``: python -m tools.pages.offers."""

import json

from gravac import offers
from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS


def text() -> str:
    """Return the file: one line for each codec that states an offer."""
    members = sorted({**COMPRESSORS, **AGGREGATORS}.items())
    lines = [
        f"  {json.dumps(name)}: {json.dumps(offers.written(vars(member)['offer']))}"
        for name, member in members
        if "offer" in vars(member) and member.__module__.startswith("gravac.")
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    offers.FILE.write_text(text(), encoding="utf-8")
