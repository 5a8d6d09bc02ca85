"""What a step of a GPT takes under FSDP2 on ranks of a slow link, plain and with the agent."""

from collections.abc import Iterator
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gravac import Agent
from tools.gpu.figures import Figure
from tools.gpu.measure.cost import empty
from tools.gpu.measure.gpt import GPT, RATE, SHAPES, batch, loss_of
from tools.gpu.measure.timing import quartiles, seconds_of

WARM_UP, STEPS = 1, 4
SIDES = (("plain FSDP2", None, 1.0), ("int8", "int8", 4.0), ("topk+bf16, 1 %", "topk+bf16", 100.0))
"""Name, codec and CF."""


def against_fsdp(device: torch.device, shape: str) -> Iterator[Figure]:
    """Measure steps of each side. All ranks run it."""
    sizes, plain = SHAPES[shape], 0.0
    tokens = batch(sizes, device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for name, codec, cf in SIDES:
        torch.manual_seed(0)
        model = GPT(sizes).to(device)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        with ExitStack() as stack:
            if codec is not None:
                agent = Agent(
                    model,
                    optimizer,
                    compressor=codec,
                    policy=f"static:cf={cf}",
                    controller=None,
                )
                stack.enter_context(agent)

            def step(model: GPT = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
                loss_of(model, tokens).backward()
                optimizer.step()
                optimizer.zero_grad()

            taken = [seconds_of(device, step)[0] for _ in range(WARM_UP + STEPS)][WARM_UP:]
        low, middle, high = quartiles(taken)
        plain = plain or middle
        yield Figure(name=f"FSDP2, 2 ranks, {name}: a step", value=middle, unit="s", low=low, high=high)
        if codec is not None:
            yield Figure(name=f"FSDP2, 2 ranks, {name}: plain FSDP2 / this", value=plain / middle, unit="x")
        del model, optimizer, step
        empty(device)
