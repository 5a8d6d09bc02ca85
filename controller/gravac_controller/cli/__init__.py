"""The command line: ``gravac …``. Each command is a module of its own, loaded when it is asked for."""

from importlib import import_module

import click

COMMANDS = ("demo", "serve", "top", "status", "explain", "codecs", "replay", "ui", "bench")
"""In the order of the help. A new command: its module with a click command of the same name, and its name here."""


class _Commands(click.Group):
    """Loads a command's module only when needed: ``gravac replay`` has no use for a web server."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"gravac_controller.cli.{name}"), name)
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="gravac")
def main() -> None:
    """Adaptive gradient compression for PyTorch distributed training.

    Training on many machines sends every gradient over the network at every step. gravac sends less while that
    pays, decides how much less once a window, and says why.

    \b
    Begin with:
      gravac demo                     watch a real training adapt, on this machine
      gravac replay TRACE --check     prove that its decisions follow from what was measured
    """
