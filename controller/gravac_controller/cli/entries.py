"""The entries of the catalogue as text, for ``gravac codecs`` and docs/catalogue.md."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from gravac.catalogue import RANKS, CatalogueEntry, Cost, Group, Kind
from gravac_controller.cli.wording import Listing, size


class KindWords(NamedTuple):
    """The title of a kind, what it does, and how to choose an entry of it (``{}``: its name)."""

    title: str
    does: str
    use: str


KINDS: dict[Kind, KindWords] = {
    "compressor": KindWords(
        "Compressors", "which part of a gradient is sent", 'Agent(model, optimizer, compressor="{}")'
    ),
    "aggregator": KindWords(
        "Aggregators",
        "compression in which the ranks cooperate",
        'Agent(model, optimizer, compressor="{}")',
    ),
    "memory": KindWords("Error memories", "what happens to the rest", 'Agent(model, optimizer, memory="{}")'),
    "collective": KindWords(
        "Collectives", "how payloads are combined", 'Agent(model, optimizer, collective="{}")'
    ),
    "policy": KindWords(
        "Policies", "rules that choose the compression factor", 'Agent(model, optimizer, policy="{}")'
    ),
}
GROUPS: dict[Group | None, str] = {"auto": "Chosen by auto", "papers": "From the papers", None: ""}
LINK = f"Link of {RANKS} ranks"
NOTHING = 1.2e-38
"""A smaller error is not a float32."""
NUMERIC = {"Elements", "CF asked", "CF reached", "Payload", LINK, "Held"}


def numeric(column: str) -> bool:
    """Return whether a column of ``costs`` or of ``sends`` is aligned right."""
    return column.partition(",")[0] in NUMERIC


def grouped(kind: Kind, entries: Sequence[CatalogueEntry]) -> Iterator[tuple[str, list[CatalogueEntry]]]:
    """Yield the title of each group of a kind, empty where it has none, and the group's entries."""
    for group, title in GROUPS.items():
        named = [entry for entry in entries if (entry.kind, entry.group) == (kind, group)]
        if named:
            yield title, named


def use(entry: CatalogueEntry) -> str:
    """Code that chooses the entry. A setting without a default stands for itself: ``static:cf=…``."""
    required = ",".join(f"{setting.name}=…" for setting in entry.settings if setting.default is None)
    return KINDS[entry.kind].use.format(f"{entry.name}:{required}" if required else entry.name)


def traits(entry: CatalogueEntry, present: bool = True) -> str:
    """Return the traits it has (or, with ``present=False``, does not have), separated by commas."""
    return ", ".join(name.replace("_", " ") for name, value in entry.traits.items() if value is present)


def what(entry: CatalogueEntry, entries: Sequence[CatalogueEntry]) -> str:
    """A unique line about the entry: variants share the summary of the first one, and describe how they differ."""
    first = next(other for other in entries if other.summary == entry.summary)
    return prose(entry.summary if first.name == entry.name else entry.details.split("\n\n")[0])


def prose(text: str) -> str:
    """Text of a docstring with code in single backticks, for a terminal and for Markdown."""
    return text.replace("``", "`")


def bound(cost: Cost) -> str:
    """Return the proven bound of ``E‖C(x)−x‖²``; empty where there is none."""
    terms: list[str] = []
    if cost.delta is not None and (cost.omega is None or 1.0 - cost.delta <= cost.omega):
        lost = 1.0 - cost.delta
        small, share = f"{lost:.3g}", f"(1−{cost.delta:.3g})"
        terms = ["0"] if not lost else [f"{small if lost < 0.5 else share}·‖x‖²"]
    elif cost.omega is not None:
        terms = [f"{cost.omega:.3g}·‖x‖²"]
    if cost.absolute and cost.absolute > NOTHING:
        terms.append(f"{cost.absolute:.3g}")
    return " + ".join(terms)


def settings(entry: CatalogueEntry) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of settings; no rows where there are none."""
    rows = [
        [
            setting.name,
            "required" if setting.default is None else setting.default,
            prose(setting.meaning or "see above"),
        ]
        for setting in entry.settings
    ]
    return ["Setting", "Default", "Meaning"], rows


def costs(entry: CatalogueEntry) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of sizes; only columns with a value."""
    columns = {
        "Elements": [str(cost.numel) for cost in entry.costs],
        "CF asked": [_factor(cost.cf) for cost in entry.costs],
        "CF reached": [_factor(cost.reached_cf) for cost in entry.costs],
        "Payload": [_size(cost.payload_bytes) for cost in entry.costs],
        LINK: [_size(cost.link_bytes) for cost in entry.costs],
        "Held": [_size(cost.held_bytes) for cost in entry.costs],
        "Proven error at most": [bound(cost) for cost in entry.costs],
    }
    filled = {head: cells for head, cells in columns.items() if any(cells)}
    return list(filled), [list(row) for row in zip(*filled.values(), strict=True)]


def sends(entry: CatalogueEntry) -> str:
    """Bytes at the largest size and strongest CF of the catalogue; empty where there are none."""
    if not entry.costs:
        return ""
    last = entry.costs[-1]
    found = (last.payload_bytes if last.link_bytes is None else last.link_bytes, last.held_bytes)
    return next((size(value) for value in found if value is not None), "")


def sends_of(kind: Kind, entries: Sequence[CatalogueEntry]) -> str:
    """Return the head of the column of ``sends`` for a kind."""
    cost = next((entry.costs[-1] for entry in entries if entry.kind == kind and entry.costs), None)
    if cost is None:
        return ""
    million = f"{cost.numel:,} elements"
    if cost.held_bytes is not None:
        return f"Held, {million}"
    if cost.link_bytes is not None:
        return f"{LINK}, {million}, CF {cost.cf:g}"
    return f"Payload, {million}, CF {cost.cf:g}"


def overview(console: Console, entries: Sequence[CatalogueEntry]) -> None:
    """Print every kind with its entries, one line each where there is room."""
    for kind, words in KINDS.items():
        head, _, of = sends_of(kind, entries).partition(", ")
        sent = f"; {head.lower()}: {of}" if head else ""
        console.print(f"{words.title}: {words.does}{sent}", style="bold")
        for group, named in grouped(kind, entries):
            if group:
                console.print(f"{group}:")
            table = Listing(("Name",), (head,) if head else (), prose="What", leaving=(), head="dim")
            for entry in named:
                table.add_row(entry.name, *([sends(entry)] if head else []), what(entry, entries))
            console.print(table)
        console.print()


def in_full(console: Console, entry: CatalogueEntry) -> None:
    """Print everything about one entry."""
    console.print(f"{entry.name} ({entry.kind})", style="bold")
    for paragraph in filter(None, (entry.summary, *entry.details.split("\n\n"))):
        console.print(prose(paragraph))
    console.print()
    facts = {"source": entry.source, "use": use(entry)}
    facts |= {"is": traits(entry), "is not": traits(entry, present=False)}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for key, value in facts.items():
        if value:
            table.add_row(key, value)
    console.print(table)
    for head, rows in (settings(entry), costs(entry)):
        if not rows:
            continue
        numbers = [column for column in head if numeric(column)]
        texts = [column for column in head if not numeric(column)]
        last = texts.pop() if texts else ""
        listing = Listing(texts, numbers, prose=last, leaving=(), head="dim")
        for row in rows:
            listing.add_row(*row)
        console.print()
        console.print(listing)
    console.print()


def _factor(cf: float | None) -> str:
    return "" if cf is None else f"{cf:.4g}"


def _size(count: int | None) -> str:
    return "" if count is None else size(count)
