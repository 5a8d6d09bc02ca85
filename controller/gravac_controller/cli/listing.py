"""The catalogue on a terminal: a table a kind, and one member in full."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gravac.catalogue import Entry
from gravac_controller.cli import members


def overview(console: Console, entries: Sequence[Entry]) -> None:
    """Every kind with its members, one line each where there is room."""
    for kind, words in members.KINDS.items():
        head, _, of = members.sends_of(kind, entries).partition(", ")
        told = f"; {head.lower()}: {of}" if head else ""
        console.print(f"{words.title}: {words.does}{told}", style="bold")
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("Name", no_wrap=True)
        if head:
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("What")
        for entry in entries:
            if entry.kind == kind:
                table.add_row(
                    entry.name, *([members.sends(entry)] if head else []), members.what(entry, entries)
                )
        console.print(table)
        console.print()


def in_full(console: Console, entry: Entry) -> None:
    """All that is known of one member."""
    console.print(f"{entry.name} ({entry.kind})", style="bold")
    for paragraph in filter(None, (entry.summary, *entry.details.split("\n\n"))):
        console.print(members.prose(paragraph))
    console.print()
    facts = {"source": entry.source, "use": members.use(entry)}
    facts |= {"is": members.traits(entry), "is not": members.traits(entry, held=False)}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for key, value in facts.items():
        if value:
            table.add_row(key, value)
    console.print(table)
    for head, rows in (members.settings(entry), members.costs(entry)):
        if not rows:
            continue
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in head:
            table.add_column(column, justify="right" if members.numeric(column) else "left")
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    console.print()
