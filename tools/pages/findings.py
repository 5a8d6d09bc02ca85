"""docs/findings.md, made from the code: python -m tools.pages.findings > docs/findings.md."""

from gravac.findings import BANDS, KINDS, NAMED
from gravac.wording import format_percent

HEAD = f"""# Findings

`tools/pages/findings.py` makes this page from the code, and a test fails when it is out of date.

[`gravac observe`](profiles.md), policy `observe`, `gravac doctor` and the risk light speak by findings. Each has a
kind, a severity, its evidence, and what to do about it. `--json` has all four.

The severity of a verdict on a step follows from the share of the step that it loses: low from
{format_percent(BANDS["low"])} on, raised from {format_percent(BANDS["raised"])}, high from
{format_percent(BANDS["high"])}. The risk light has [rules of its own](efficiency.md#the-risk-light). A finding is
*unknown* where nothing shows what it is about.

A cause is named alone where it covers {format_percent(NAMED)} of the exposed time. What is not known is not taken for
zero.

| Kind | Its sentence begins with | When |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = (f"| {name} | {kind.lead or '–'} | {kind.condition} |\n" for name, kind in KINDS.items())
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
