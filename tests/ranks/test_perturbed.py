"""Gradients at parameters that are put back before the step leave nothing in the error memory."""

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed

BACK = ["sam", "asam", "extragradient", "subtracted", "closure", "closure_of_both", "maml", "average"]


def test_only_what_moves_the_parameters_for_good_is_used(run_each: RunEach) -> None:
    """What came into the steps is what was applied plus what waits: the other exchanges leave no trace."""
    cases = [{"kind": kind} for kind in (*BACK, "maml_by_optimizer")]
    cases += [{"kind": "sam", "compressor": "int4"}, {"kind": "by_hand"}]
    cases += [{"kind": "changing", "steps": 40}]
    cases += [{"kind": "changing", "steps": 32}]
    never = ["plain", "overflowing", "overflowing_by_optimizer"]
    cases += [{"kind": kind} for kind in never]
    off = []
    for case, (one, two) in run_each("perturbed", 2, cases):
        assert one["parameters"] == two["parameters"], case
        assert one["waits"] > 0.0, case
        notes = sum("put back" in note for note in one["notes"])
        # Sums of the parameters cost a pass over them, and a second buffer is as large as they are.
        assert one["looks"] == (case["kind"] not in never), case
        assert one["one_buffer"] == (case["kind"] in never), case
        if one["missing"] > 1e-5 or notes != (case["kind"] not in ("by_hand", *never)):
            off.append((case, one["missing"], one["notes"]))
    assert not off
