"""Makes text from outside safe to show in a terminal, a log line or JSON.

Names of folders, notes of operators and messages of exceptions may hold escape sequences that rewrite a terminal, line
breaks that forge a log line, or lone surrogates, which are not valid JSON.
"""

import logging


def escaped(text: str) -> str:
    """Write each control character as its escape (``\\x1b``); nothing is lost."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


class SafeFormatter(logging.Formatter):
    """Formats log records so that no text from outside can move a cursor or start a new line.

    A message is one line. Lines of a traceback are indented, so none of them looks like a record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, plus indented ones for a traceback."""
        first, *others = super().format(record).split("\n")
        return "\n".join([first, *(f"  {escaped(line)}" for line in others)])


def log_safely(level: int) -> None:
    """Log to standard error through ``SafeFormatter``. Later calls do nothing."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
