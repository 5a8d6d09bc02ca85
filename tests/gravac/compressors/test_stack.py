"""Stacks: any selector on any quantizer."""

import torch

from gravac.compressors import Stack, build
from tests.support.maths.checks import KEY, achieved, vector


def test_any_selector_stacks_on_any_quantizer() -> None:
    for text in (
        "topk+int8",
        "randomk+int4:block=16",
        "blockrandomk+natural",
        "topk+scaledsign",
        "topk+qsgd:bits=3",
    ):
        codec = build(text)
        assert isinstance(codec, Stack)
        x = vector("gauss", 500)
        payload = codec.compress(x, 10.0, KEY, torch.float32)
        assert payload.nbytes == codec.wire_bytes(500, 10.0, torch.float32)
        again = codec.layout(500, 10.0, torch.float32).unpack(payload.pack(), KEY)
        assert torch.equal(codec.decode(again), codec.decode(payload))
        assert achieved(payload) == 10.0
