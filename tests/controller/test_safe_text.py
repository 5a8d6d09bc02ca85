"""An operator's note stays one line of the log."""

import logging
import sys

from gravac_controller.safe_text import SafeFormatter


def test_an_operators_note_stays_one_line_of_the_log() -> None:
    """Escape sequences, line breaks and invalid text, in a message and in the text of an exception."""
    words = "\x1b[2J\x1b]0;owned\x07\r\n2026-01-01 ERROR gravac.controller: forged \udcff\u202e"
    formatter = SafeFormatter("%(levelname)s %(name)s: %(message)s")
    record = logging.makeLogRecord(
        {"msg": "order: %s", "args": (words,), "levelname": "WARNING", "name": "x"}
    )
    line = formatter.format(record)
    assert line.isprintable()
    assert line.startswith("WARNING x: order: \\x1b[2J")
    try:
        raise ValueError(words)
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info(), "name": "x"})
    first, *others = formatter.format(record).split("\n")
    assert first.endswith("x: failed")
    assert others
    assert all(one.startswith("  ") and one.isprintable() for one in others)
