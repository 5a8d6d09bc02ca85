"""docs/catalogue.md, made from the code: python -m tools.pages.catalogue > docs/catalogue.md."""

import re

from gravac.catalogue import RANKS, CatalogueEntry, catalogue
from gravac_controller.cli import entries

HEAD = f"""# Catalogue

```sh
gravac codecs          # everything that can be chosen by name, with members of installed plugins
gravac codecs topk     # one of them
gravac codecs --json   # for programs
```

This page lists everything that can be chosen by name. `tools/pages/catalogue.py` makes it from the code, and a test
fails when it is out of date. The policy `auto` uses the members under *chosen by auto*. Those under *from the papers*
are for you to choose.

Settings follow the name after a colon: `compressor="qsgd:bits=4"`, `GRAVAC_MEMORY=conef:bits=4,beta=0.5`. Two codecs
combine as `selector+quantizer`: `topk+bf16`, the default, sends the elements that `topk` selects, rounded by `bf16`.

Sizes are those of float32, and expected values if sizes vary. *CF reached* is the CF that you get when you ask for one.
*Payload* is what a rank hands to collectives in a step. *Held* is what stays on a rank between steps. *Link* is what
one of {RANKS} ranks sends over its network. *Proven error* bounds E‖C(x) − x‖²; an empty cell means that no bound is
proven. `gravac/compressors/payload.py` explains the traits. *Sync free* members read nothing from a GPU within a step.
The others work on a GPU as well, but the host waits for it. A collective is sync free for payloads of fixed size.
Those with a *whole message* take [at most eight launches a bucket](gpus.md#how-many-kernels) there.
"""


def page() -> str:
    """The whole page."""
    members, parts = catalogue(), [HEAD]
    for kind, words in entries.KINDS.items():
        named = [entry for entry in members if entry.kind == kind]
        parts.append(f"## {words.title}: {words.does}\n\n{_overview(named)}\n")
        parts += [_section(entry) for entry in named]
    return "\n".join(parts)


def _overview(named: list[CatalogueEntry]) -> str:
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


def _anchor(entry: CatalogueEntry) -> str:
    """The anchor that GitHub gives to the heading of its section."""
    return re.sub(r"[^\w -]", "", f"{entry.name} {entry.kind}".lower()).replace(" ", "-")


def _section(entry: CatalogueEntry) -> str:
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


def _use(entry: CatalogueEntry) -> str:
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
