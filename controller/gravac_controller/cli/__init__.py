"""The command line: ``gravac …``. Each command has a module, which is imported when the command is used.

``gravac observe`` and the commands of the laboratory (``lab/``) are found by name: the service does not depend on them.
"""

import gc
from importlib import import_module

import click

COMMANDS = {
    "observe": "Say whether a training, unchanged, waits for its network.",
    "demo": "Train a small model on this machine and watch the compression adapt.",
    "serve": "Run the controller, which decides for jobs and serves the live page.",
    "status": "Show jobs, one line each, with the reasons, or watch one.",
    "explain": "Explain why a compression factor is in force.",
    "steer": "Give a running job an order: pin, dense, pause or resume.",
    "codecs": "List codecs, memories, collectives and policies, or describe one.",
    "replay": "Repeat the decisions of a trace, or try another policy on it.",
    "whatif": "Predict step times and decisions on another network.",
    "simulate": "Try a policy on a task without a cluster.",
    "doctor": "Say whether to compress on a network, and with what.",
    "ui": "Show a trace on the live page, at any window.",
    "report": "Write traces as one HTML file, or as a figure.",
    "export": "Export a trace to CSV or Parquet.",
    "bench": "Benchmark this machine.",
}
"""The help text of each command, in the order of the help. To add one: a module with a click command of that name, and
a line here."""
MODULES = {
    "bench": "gravac_lab.cli.commands",
    "demo": "gravac_lab.demo.command",
    "simulate": "gravac_lab.cli.simulate",
    "doctor": "gravac_controller.cli.whatif.doctor",
    "observe": "gravac_observe.command",
    "whatif": "gravac_controller.cli.whatif.command",
}
"""The module of a command where it is not ``gravac_controller.cli.NAME``."""
LAB = "gravac_lab"

SEARCHES_FOR_CYCLES = (100_000, 50, 50)
"""Arguments of ``gc.set_threshold``. Reading a long trace makes millions of objects and no cycles: the default of one
search every 700 objects took a tenth of the time."""


class _Commands(click.Group):
    """Imports a command's module only when needed: ``gravac replay`` needs no web server, the help needs nothing."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            module = import_module(MODULES.get(name, f"gravac_controller.cli.{name}"))
        except ModuleNotFoundError as error:
            if error.name != LAB:
                raise
            raise click.ClickException(
                f"`gravac {name}` belongs to the laboratory (lab/gravac_lab), which is not installed here"
            ) from None
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, also for the old spelling of ``gravac observe FILES``, for one release."""
        if args[:1] == ["doctor"] and "--profile" in args:
            click.echo(
                "note: write gravac observe FILES instead of gravac doctor --profile FILES, which ends with the next "
                "release",
                err=True,
            )
            args = ["observe", *(each for each in args[1:] if each != "--profile")]
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from gravac.wording import did_you_mean

            context.fail(f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}.")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="gravac")
def main() -> None:
    """Adaptive gradient compression for PyTorch distributed training.

    Distributed training sends every gradient over the network at every step. gravac compresses gradients where that
    makes training faster, adapts how strongly once per window, and gives the reason.

    \b
    Start with:
      gravac observe -- torchrun … train.py   does this training wait for its network?
      gravac demo                     watch a real training run adapt, on this machine
      gravac replay TRACE --check     verify that its decisions follow from the measurements
    """
    gc.set_threshold(*SEARCHES_FOR_CYCLES)
