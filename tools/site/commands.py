"""The command line reference: the help of every ``gravac`` command."""

import click

from gravac_controller.cli import main

WIDTH = 100


def page(_: str = "") -> str:
    """Markdown: a section for each command with its ``--help``."""
    return "\n".join(_sections(main, "gravac"))


def _sections(group: click.Group, path: str) -> list[str]:
    context = click.Context(group, info_name=path)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{path} lists {name}, which it cannot load"
        inner = click.Context(command, info_name=f"{path} {name}", terminal_width=WIDTH)
        found.append(f"## {path} {name}\n\n```text\n{command.get_help(inner)}\n```\n")
        if isinstance(command, click.Group):
            found += _sections(command, f"{path} {name}")
    return found
