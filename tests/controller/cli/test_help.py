"""``gravac --help``: at once, and whole."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gravac_controller.cli import COMMANDS, LAB, MODULES, main
from gravac_controller.cli.source import FOLDER, TraceFile
from tests.support.lab import HAS_LAB


def test_help_lists_every_command_whole() -> None:
    """No line is cut or broken where there are 80 columns."""
    output = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    listed = output[output.index("Commands:") :].splitlines()[1:]
    assert [line.split(maxsplit=1) for line in listed] == [[name, line] for name, line in COMMANDS.items()]


def test_every_command_is_there_and_says_what_it_does() -> None:
    context = click.Context(main)
    for name in COMMANDS:
        if not HAS_LAB and MODULES.get(name, "").startswith(f"{LAB}."):
            with pytest.raises(click.ClickException, match=f"`gravac {name}` belongs to the laboratory"):
                main.get_command(context, name)
            continue
        command = main.get_command(context, name)
        assert command is not None, name
        assert command.name == name
        assert command.get_short_help_str(), name


def test_a_misspelled_command_or_option_gets_the_closest_one() -> None:
    for words, said in (
        (["stauts"], "No such command 'stauts' (did you mean 'status'?)."),
        (["status", "--wacth"], "No such option '--wacth'. Did you mean '--watch'?"),
    ):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
        assert said in done.output


@pytest.mark.smoke
def test_help_loads_no_command() -> None:
    """Whatever they need, asking what there is takes a tenth of a second."""
    code = (
        "import json, sys; from gravac_controller.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not {"pydantic", "fastapi", "rich", "torch"} & loaded
    assert {name for name in loaded if name.startswith("gravac_controller.cli.")} == set()


def test_every_command_says_where_it_looks_for_a_name() -> None:
    """And takes the folder of journals from the same variable as the agent, which has it in its settings."""
    context, found = click.Context(main), dict[str, int]()
    for name in COMMANDS:
        if name == "serve" or (not HAS_LAB and MODULES.get(name, "").startswith(f"{LAB}.")):
            continue  # a service has settings of its own
        command = main.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if parameter.name == "data_dir":
                assert parameter.envvar == FOLDER, name
            if isinstance(parameter.type, TraceFile) or parameter.name in ("data_dir", "words", "compare"):
                said = command.get_help(click.Context(command, info_name=name, terminal_width=10_000))
                assert FOLDER in said, name
                found[name] = found.get(name, 0) + 1
    assert {"replay", "report", "export", "whatif", "doctor", "ui", "observe", "status"} <= set(found)
