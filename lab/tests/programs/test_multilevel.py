"""Figures of papers that our benchmarks print beside their own."""

import pytest

from gravac_lab.programs.multilevel import PUBLISHED

TABLE_3 = {
    "topk": ((606, 332), (181, 121), (200, 126)),
    "dgc": ((90, 59), (122, 95.5), (88, 63)),
    "redsync": ((33, 29.8), (101.4, 87.7), (69.4, 46.4)),
    "randomk": ((23, 14), (41.6, 31), (56.4, 37.4)),
}
"""GraVAC, table 3: milliseconds for 10x and 1000x, directly and multi-level; ResNet101, VGG16, LSTM."""


def test_the_best_of_three_networks_is_given() -> None:
    assert PUBLISHED.keys() == TABLE_3.keys()
    for codec, rows in TABLE_3.items():
        assert PUBLISHED[codec] == pytest.approx(max(direct / levels for direct, levels in rows), abs=0.006)
