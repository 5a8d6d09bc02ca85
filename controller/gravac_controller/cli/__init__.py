"""The command line: ``gravac …``. Each command is a module of its own, loaded when it is asked for."""

import gc
from importlib import import_module

import click

COMMANDS = {
    "demo": "Train for real on this machine and watch the compression adapt.",
    "serve": "Run the controller: decide for jobs, journal and show it.",
    "top": "Watch jobs run: the CF and why, where time goes, ranks, decisions.",
    "status": "Show jobs, one line each, with the reason of the decision in force.",
    "explain": "Say why a compression factor is in force, on what evidence.",
    "pin": "Have a running job send one compression factor.",
    "dense": "Have a running job send whole gradients.",
    "pause": "Have a running job hold what it has settled on.",
    "resume": "Give the decision back to a job's policy.",
    "codecs": "List everything that can be chosen by name, or tell all of one.",
    "replay": "Decide every window of a trace again and show the decisions.",
    "whatif": "Foretell steps and decisions on another network, with more ranks.",
    "ui": "Look at a trace as the live page showed it, from first to last.",
    "report": "Write traces as one page that needs no server, or as a picture.",
    "export": "Write a trace as CSV, Parquet, for TensorBoard, or for Prometheus.",
    "bench": "Measure on this machine.",
}
"""What the help says of each, in its order. A new command: its module with a click command of the same name, and a line
here."""
MODULES = {
    "bench": "bench.commands",
    "demo": "demo.command",
    "whatif": "whatif.command",
    **dict.fromkeys(("pin", "dense", "pause", "resume"), "steer"),
}
"""Where a command is, if not in the module of its own name."""

SEARCHES_FOR_CYCLES = (100_000, 50, 50)
"""As ``gc.set_threshold`` takes them. Reading a long trace makes millions of objects and no cycle: searching for one
after every 700 took a tenth of the time."""


class _Commands(click.Group):
    """Loads a command's module only when needed: ``gravac replay`` needs no web server, the help nothing at all."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(
            import_module(f"gravac_controller.cli.{MODULES.get(name, name)}"), name
        )
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


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
    gc.set_threshold(*SEARCHES_FOR_CYCLES)
