"""docs/catalogue.md, made from the code: python -m tools.pages.catalogue > docs/catalogue.md."""

import re

from gravac.catalogue import RANKS, Entry, catalogue
from gravac_controller.cli import entries

HEAD = f"""# Catalogue

Everything that can be chosen by name. Made from the code by `tools/pages/catalogue.py`; a test fails when this page is
out of date. On a terminal: `gravac codecs`, `gravac codecs topk`; as data: `gravac codecs --json`. Members of installed
plugins are listed there too. *Chosen by auto* is what policy `auto` uses by itself; the others are *from the papers*,
for you to choose.

Settings follow the name, after a colon: `compressor="qsgd:bits=4"`, `GRAVAC_MEMORY=conef:bits=4,beta=0.5`. Two codecs
combine as `selector+quantizer`: `topk+bf16`, the default, sends the elements that `topk` selects, rounded by `bf16`.

Sizes are of float32. *CF reached* is what asking for a CF gives, *payload* what a rank hands to collectives in a step;
both are expected values if sizes vary. *Held* is what stays on a rank from step to step, *link* what a rank of
{RANKS} puts on its network. *Proven error* bounds E‖C(x) − x‖²; where the cell is empty, no bound is proven. The
traits are explained in `gravac/compressors/payload.py`. *Sync free* members read nothing from a GPU within a step. The
others work there, too, but the host waits for the GPU; for a collective that holds of payloads of fixed size.
"""


def page() -> str:
    """The whole page."""
    members, parts = catalogue(), [HEAD]
    for kind, words in entries.KINDS.items():
        named = [entry for entry in members if entry.kind == kind]
        parts.append(f"## {words.title}: {words.does}\n\n{_overview(named)}\n")
        parts += [_section(entry) for entry in named]
    return "\n".join(parts)


def _overview(named: list[Entry]) -> str:
    head = ["Name", entries.sends_of(named[0].kind, named), "What"]
    shown = [number for number, name in enumerate(head) if name]
    blocks = []
    for group, members in entries.grouped(named[0].kind, named):
        rows = [
            [f"[{entry.name}](#{_anchor(entry)})", entries.sends(entry), _text(entries.what(entry, named))]
            for entry in members
        ]
        table = _table(
            [head[number] for number in shown], [[row[number] for number in shown] for row in rows]
        )
        blocks += [f"{group}:", table] if group else [table]
    return "\n\n".join(blocks)


def _anchor(entry: Entry) -> str:
    """The anchor that GitHub gives to the heading of its section."""
    return re.sub(r"[^\w -]", "", f"{entry.name} {entry.kind}".lower()).replace(" ", "-")


def _section(entry: Entry) -> str:
    paragraphs = [
        _text(paragraph) for paragraph in (entry.summary, *entry.details.split("\n\n")) if paragraph
    ]
    facts = [f"- Source: {_text(entry.source)}.", f"- Use: {_use(entry)}"]
    for word, held in (("Is", True), ("Is not", False)):
        if entries.traits(entry, held):
            facts.append(f"- {word}: {entries.traits(entry, held)}.")
    blocks = [f"### {entry.name} ({entry.kind})", *paragraphs, "\n".join(facts)]
    blocks += [_table(head, rows) for head, rows in (entries.settings(entry), entries.costs(entry)) if rows]
    return "\n\n".join(blocks) + "\n"


def _use(entry: Entry) -> str:
    use = entries.use(entry)
    return f"`{use}`" if '"' in use else f"{use}."


def _text(text: str) -> str:
    """Prose of a docstring as Markdown: code keeps its backticks, the rest loses what Markdown would read as marks."""
    pieces = entries.prose(text).split("`")
    pieces[::2] = [piece.replace("*", "\\*").replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---:" if entries.numeric(name) else "---" for name in head], *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
