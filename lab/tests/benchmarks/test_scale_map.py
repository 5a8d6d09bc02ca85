"""``lab/benchmarks/scale_map.py``: the picture is up to date, and says what its formulas say."""

from pathlib import Path

import pytest

from lab.benchmarks import scale_map

DOCS = Path(__file__).parents[3] / "docs"


def test_the_picture_of_the_docs_is_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "scale.svg"
    scale_map.main(["--plot", str(plot)])
    assert plot.read_bytes() == (DOCS / "scale.svg").read_bytes(), (
        "python -m lab.benchmarks.scale_map --plot docs/scale.svg"
    )
    assert plot.stat().st_size < 50_000
    *_, counted = capsys.readouterr().out.splitlines()
    for kind in scale_map.KINDS:
        assert f"{kind.letter}: {kind.name}" in counted


def test_what_is_best_follows_from_the_network() -> None:
    """On one host, or on many fast cards, gradients stay dense; the slower the link, the more compression brings."""
    assert scale_map.best(("adam-aged", 8, 1, 1.0)).kind.name == "dense"
    assert scale_map.best(("adam", 16, 8, 100.0)).kind.name == "dense"
    slow, fast = (scale_map.best(("adam-aged", 64, 1, gbits)) for gbits in (1.0, 100.0))
    assert slow.times > 5 * fast.times > 5
    assert slow.two_levels


def test_a_gather_loses_to_dense_gradients_as_ranks_grow() -> None:
    """Without two levels, a gather of 1,024 ranks puts more on a link than dense gradients."""
    dense, gathered = ("dense", 1.0, "auto"), ("topk+twobit", 16.6, "gather")
    few, many = ("adam-aged", 16, 8, 10.0), ("adam-aged", 1024, 8, 10.0)
    assert scale_map.progress(gathered, few, False) > scale_map.progress(dense, few, False)
    assert scale_map.progress(gathered, many, False) < scale_map.progress(dense, many, False)
