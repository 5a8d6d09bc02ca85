"""What a message says of many ranks stays short."""

from gravac_agent.exchange.agreement import said


def test_all_of_few_ranks_are_named() -> None:
    assert said([1, 1, 2]) == "rank 0 has 1, rank 1 has 1, rank 2 has 2"


def test_of_many_ranks_those_that_differ_are_named() -> None:
    """It would be 25 kB for each of three fields, on each of 1,024 ranks."""
    values = [50] * 1024
    values[700] = 49
    assert said(values) == "rank 0 has 50, rank 700 has 49"
    alone = said([50, *[49] * 1023])
    assert alone.endswith("rank 7 has 49 and 1016 more ranks differ from rank 0")
    assert len(alone) < 200
