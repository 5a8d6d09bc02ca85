"""A callback on an FSDP2 model is refused."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gravac_agent import SetupError
from gravac_agent.integrations.attachment import Attachment


def test_a_callback_on_an_fsdp2_model(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(fully_shard(nn.Linear(4, 2), mesh=init_device_mesh("cpu", (1,))))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(
        SetupError, match=r"GravacCallback does not support FSDP2 yet.*Agent\(model, optimizer\)"
    ):
        Attachment("GravacCallback", {}).start(model, torch.optim.SGD(model.parameters(), lr=0.1))
