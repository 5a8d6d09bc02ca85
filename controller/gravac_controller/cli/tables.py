"""The one look of tables of figures."""

from collections.abc import Sequence

from rich.table import Table


def table_of(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table with columns of these names: texts first, then numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in texts:
        table.add_column(head, no_wrap=True)
    for head in numbers:
        table.add_column(head, justify="right", no_wrap=True)
    return table
