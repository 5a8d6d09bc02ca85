"""Headers of messages: one of another step is refused."""

import pytest
import torch

from gravac.collectives.messages import HEADER_BYTES, Header
from gravac.compressors import Key, build


@pytest.mark.parametrize("text", ["topk+bf16", "qsgd", "hardthreshold"])
def test_a_message_of_another_step_is_refused(text: str) -> None:
    """Two ranks out of step would have a mean that is wrong and looks right."""
    codec, x = build(text), torch.randn(500, generator=torch.Generator().manual_seed(2))
    key = Key(1, 7, 3, 0)
    payload = codec.compress(x, 10.0, key, torch.float32)
    layout = codec.layout(500, 10.0, torch.float32)
    message = Header(layout, key).pack(payload.parts)
    assert message.numel() == HEADER_BYTES + payload.nbytes
    rest = Header(layout, key._replace(rank=5)).strip(message, 0)
    assert torch.equal(rest, payload.pack()), "the rank does not matter"
    for changed in (
        (build("int8").layout(500, 10.0, torch.float32), key),
        (layout, key._replace(step=8)),
        (layout, key._replace(bucket=4)),
        (codec.layout(500, 10.0, torch.bfloat16), key),
        (codec.layout(500, 20.0, torch.float32), key),
        (codec.layout(501, 10.0, torch.float32), key),
    ):
        with pytest.raises(ValueError, match=r"rank 0 sent something else .*: the ranks are out of step"):
            Header(*changed).strip(message, 0)
