"""Other people's text made safe to show: in a terminal, a log line or JSON.

Names of folders, notes of operators and messages of exceptions may hold anything: escape sequences that rewrite a
terminal, line breaks that forge a log line, lone surrogates that are not JSON.
"""

import logging


def escaped(text: str) -> str:
    """The text with each control character written as its escape (``\\x1b``), nothing left out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


class SafeFormatter(logging.Formatter):
    """Writes log records so that no text from outside can move a cursor or begin a line of its own.

    A message is one line. Lines of a traceback are indented, so none of them looks like a record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """One line, and indented ones for a traceback."""
        first, *others = super().format(record).split("\n")
        return "\n".join([first, *(f"  {escaped(line)}" for line in others)])


def log_safely(level: int) -> None:
    """Send this process's log to standard error through ``SafeFormatter``; later calls change nothing."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
