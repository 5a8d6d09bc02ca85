"""A backward that is captured in a CUDA graph is refused, and disturbs neither the capture nor the training."""

from pathlib import Path

import pytest
import torch

from gravac_agent import Agent
from gravac_agent.streams.executor import StreamExecutor
from tests.support.small_model import pair, step
from tests.support.streams.at_once import streams_for_agents
from tests.support.streams.device import SimulatedDevice


@pytest.mark.parametrize("before", [0, 3])
def test_a_captured_backward_is_refused(world_of_one: None, tmp_path: Path, before: int) -> None:
    """Before the first step, and where the result of a step has not been read yet, which queries its event."""
    module, optimizer = pair()
    with (
        streams_for_agents(),
        Agent(module, optimizer, data_dir=tmp_path, controller=None, policy="static:cf=2") as agent,
    ):
        assert agent._parts is not None
        executor = agent._parts.executor
        assert isinstance(executor, StreamExecutor)
        assert isinstance(executor.device, SimulatedDevice)
        for _ in range(before):
            step(module, optimizer)
        executor.device.capturing = True
        module(torch.ones(3, 4)).sum().backward()
        executor.device.capturing = False
        with pytest.raises(RuntimeError, match="backward is captured in a CUDA graph"):
            optimizer.step()
        optimizer.zero_grad()
        for _ in range(2):
            step(module, optimizer)
        agent.state_dict()  # reads the last step
        assert agent.state is not None
        assert agent.state.step == before + 2
        assert agent.state.nonfinite_steps == 0
