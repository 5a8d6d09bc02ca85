"""Candidates of different codecs are different candidates."""

from gravac.policies import candidates
from gravac.policies.windows import measure
from tests.gravac.policies.test_windows import fold_of
from tests.support.scripted import Play
from tools.harness.cluster import Cluster

CLUSTER = Cluster()


def test_candidates_are_told_apart_by_their_codec() -> None:
    rows = (*candidates.untried((1.0, 10.0)), *candidates.untried((10.0,), "qsgd"))
    fold = fold_of(Play("qsgd", 10.0))
    rows = candidates.update(rows, measure(CLUSTER.report(0, fold.decision), fold.decision, 1))
    assert candidates.row(rows, 10.0, "qsgd").gain == 0.6
    assert candidates.row(rows, 10.0).gain is None
    rows = candidates.mark(rows, 10.0, "too_strong", codec="qsgd")
    assert [row.verdict for row in rows] == ["untried", "untried", "too_strong"]
