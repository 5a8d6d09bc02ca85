"""The memory's sketch is that of what came in minus what was sent."""

import torch

from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, SketchMemory, build
from gravac.memories.rowsketch import RowSketch


def test_the_sketch_is_that_of_what_came_in_minus_what_was_sent() -> None:
    memory, codec, n = build("conef-sketch:size=0.3"), build_codec("topk"), 1000
    assert isinstance(memory, SketchMemory)
    bucket, net = Bucket(0, ("x",), (n,)), torch.zeros(n)
    for number in range(20):
        gradient = torch.randn(n, generator=torch.Generator().manual_seed(number))
        p = memory.open(bucket).compensate(gradient)
        payload = codec.compress(p, 20.0, Key(0, number, 0, 0), torch.float32)
        net += gradient - codec.decode(payload)
        memory.open(bucket).update(codec, payload)
        memory.commit()
    torch.testing.assert_close(
        memory.state_dict()["x"], RowSketch(0.3, 256, 0).encode(net), rtol=1e-4, atol=1e-4
    )
