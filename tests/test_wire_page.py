"""docs/wire.md names the fields of the tick and the words of the directive as the code has them, in order."""

import re
from dataclasses import fields
from pathlib import Path

from gravac.collectives.messages import HEADER_BYTES, SIZE_BYTES
from gravac.kernels.device.tiled import BLOCK, TILE
from gravac_agent.exchange import raw_mean
from gravac_agent.exchange.plan import Directive
from gravac_agent.exchange.sample import PER_TENSOR, TENSORS
from gravac_agent.exchange.tick import NAMES, PHASES, TickCodec

PAGE = (Path(__file__).parent.parent / "docs" / "wire.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith(("| field", "| word", "| bytes", "| record"))
    ]


def test_the_fields_of_the_tick_are_those_of_the_code() -> None:
    found = rows("The tick")
    names = [name.strip("`") for name, _, _ in found]
    assert names[: len(NAMES)] == list(NAMES)
    assert names[len(NAMES) :] == [
        *("directive", "fingerprint", "squares of the fingerprint", "signed sums", "statistics", "sample")
    ]
    numbers = [int(count) for _, count, _ in found if count.isdigit()]
    assert sum(numbers) == TickCodec(0, 2).size
    assert numbers[len(NAMES) :] == [len(fields(Directive)), 3, 3, raw_mean.SIZE]
    assert f"at most {TENSORS * PER_TENSOR} or so" in PAGE


def test_the_words_of_the_directive_are_those_of_the_code() -> None:
    found = rows("The directive")
    assert [word.strip("`") for word, _ in found] == [field.name for field in fields(Directive)]
    (phases,) = [what for word, what in found if word == "`phase`"]
    assert phases == ", ".join(f"{number} {phase}" for number, phase in enumerate(PHASES))


def test_the_header_is_that_of_the_code() -> None:
    spans = [re.findall(r"\d+", span) for span, _ in rows("The header of a message")]
    assert spans == [["0", str(HEADER_BYTES // 2 - 1)], [str(HEADER_BYTES // 2), str(HEADER_BYTES - 1)]]
    assert f"exchange the sizes first, {SIZE_BYTES} bytes a message" in PAGE


def test_each_record_of_the_page_is_one_of_the_protocol() -> None:
    from gravac import protocol

    for record, *_ in rows("Records"):
        assert issubclass(getattr(protocol, record.strip("`")), protocol.Record)


def test_the_tiles_and_blocks_of_a_whole_message_are_those_of_the_code() -> None:
    text = dict(rows("A whole message of a GPU")[1:])
    assert f"each tile of {TILE:,} elements" in text["table"]
    assert text["values"].endswith(f"two magnitudes for each {BLOCK}")
