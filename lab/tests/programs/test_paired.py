"""A row is medians of pairs."""

from gravac_lab.programs.paired import row


def test_a_row_is_medians_of_pairs() -> None:
    """Not a ratio of medians: drift of the machine hits both sides of a pair."""
    found = row("a", "b", 10, 2.0, [(2.0, 1.0), (30.0, 10.0), (8.0, 2.0)], more=1)
    assert found["baseline"] == 8.0
    assert found["seconds"] == 2.0
    assert found["ratio"] == 3.0
    assert found["quartiles"] == [2.5, 3.5]
    assert found["more"] == 1
