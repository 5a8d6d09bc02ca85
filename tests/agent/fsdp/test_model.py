"""FSDP2 models of a torch that has no hook for them are refused."""

from types import SimpleNamespace

import pytest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gravac_agent.fsdp.model import has_replicas


def test_an_fsdp2_model_of_torch_2_11(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a module knows one group, and has no list of them."""
    model = fully_shard(nn.Linear(4, 2), mesh=init_device_mesh("cpu", (1,)))
    (group,) = model._get_fsdp_state()._fsdp_param_groups
    monkeypatch.setattr(model, "_get_fsdp_state", lambda: SimpleNamespace(_fsdp_param_group=group))
    assert not has_replicas(model)
