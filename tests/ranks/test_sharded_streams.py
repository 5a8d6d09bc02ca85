"""Agents of FSDP2 models that exchange on streams, as on a GPU, against those with threads; four ranks."""

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed
FRESH_RANKS = True  # a mesh and the groups of a sharded model stay with the process


@pytest.mark.parametrize("how", ["fsdp", "given", "native", "replicate"])
def test_fsdp2_on_streams_trains_as_with_threads(run_each: RunEach, how: str) -> None:
    """A step that is not finite on one rank is lost on all, though most shards of its gradient are finite."""
    cases = [{"how": how, "compressor": codec} for codec in ("topk+bf16", "blockrandomk", "int8")]
    for case, ranks in run_each("sharded_on_streams", 4, [*cases, {"how": how, "clip": 0.2}]):
        for rank in ranks:
            threads, streams = rank["threads"], rank["streams"]
            assert (threads.pop("streams"), streams.pop("streams")) == (False, True), case
            threads.pop("lost")
            assert [step for step, lost in enumerate(streams.pop("lost")) if lost] == [6], case
            assert streams == threads, case
            assert (streams["nonfinite"], streams["windows"]) == (1, 3), case
            assert rank["waits"] > 0.0, case
            if (
                "clip" in case
            ):  # by a norm that follows from the tick's sums, which a device rounds differently
                assert rank["off"] < 1e-4, case
            else:
                assert all(rank["same"]), case
