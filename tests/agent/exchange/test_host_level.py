"""A piece of a host has the rows of a shard."""

from gravac_agent.exchange.host_level import piece_shape


def test_a_piece_has_the_rows_of_a_shard() -> None:
    assert piece_shape((10, 4), 4) == (3, 4)
    assert piece_shape((), 4) == (1,)
    assert piece_shape((0, 7), 2) == (0, 7)
