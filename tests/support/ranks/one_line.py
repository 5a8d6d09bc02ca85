"""A training with the hook line, or with what it stands for: ``torchrun … one_line.py HOW``.

It prints its losses to the bit.
"""

import argparse
import contextlib
import copy
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gravac

arguments = argparse.ArgumentParser()
arguments.add_argument("how", choices=["plain", "line", "agent", "disabled", "given", "unseen", "twice"])
arguments.add_argument("--plan", default="topk+twobit@16")
arguments.add_argument(
    "--end", choices=["kept", "late", "destroyed", "raised"], default="kept", help="of the process group"
)
arguments.add_argument("--alone", action="store_true", help="each rank is a process group of its own")
arguments.add_argument("--compiled", action="store_true")
arguments.add_argument("--steps", type=int, default=14)
asked = arguments.parse_args()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
group = [dist.new_group([one]) for one in range(dist.get_world_size())][rank] if asked.alone else None
layers = [torch.nn.Linear(64, 64) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02, process_group=group)
torch._dynamo.config.optimize_ddp = False  # it wants buckets larger than torch's first one
called = torch.compile(model, backend="aot_eager") if asked.compiled else model
# What a search for modules meets in other programs.
scripted, unfinished = torch.jit.script(torch.nn.Linear(2, 2)), torch.nn.Linear.__new__(torch.nn.Linear)
# Of another model, whose steps say nothing.
other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
settings = {"window": 5, "controller": None}
state = None
if asked.how not in ("plain", "agent"):
    more = (
        {"enabled": False}
        if asked.how == "disabled"
        else {"optimizer": optimizer}
        if asked.how == "given"
        else {}
    )
    state, hook = gravac.hook(asked.plan, **settings, **more)
    model.register_comm_hook(state, hook)
    if asked.how == "twice":
        second = DistributedDataParallel(torch.nn.Linear(64, 64))
        second.register_comm_hook(state, hook)


def step(number: int) -> None:
    """Make one step, after an evaluation that only rank 0 makes."""
    if rank == 0:
        with torch.no_grad():
            called.module(torch.ones(1, 64)) if asked.compiled else called(torch.ones(1, 64))
    torch.manual_seed(100 * number + rank)
    other.step()
    loss = called(torch.randn(8, 64)).square().mean()
    if asked.how == "twice":
        loss = loss + second(torch.ones(1, 64)).square().mean()
    loss.backward()
    if asked.how == "unseen":
        with torch.no_grad():
            for one in model.parameters():
                one.sub_(0.1 * one.grad)
    else:
        optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(number, total.item().hex())


step(0)
with contextlib.ExitStack() as around:
    if asked.how == "agent":
        codec, _, cf = asked.plan.partition("@")
        around.enter_context(
            gravac.Agent(called, optimizer, compressor=codec, policy=f"static:cf={cf}", **settings)
        )
    for number in range(1, asked.steps):
        step(number)
        if number == asked.steps // 2 and not asked.alone:  # a group of its own is not copied
            copy.deepcopy(model.module)
            copy.deepcopy(model)(torch.ones(1, 64))  # it has no agent
# Gloo's own thread frees the tensors of the last sum. In torch 2.13 it wants the interpreter for that, and a process
# that is ending then aborts, also without gravac.
time.sleep(0.5)
if asked.how in ("line", "given"):
    assert state.agent.state.cf == float(asked.plan.partition("@")[2] or 1.0)
if asked.end == "late" and rank == 0:
    time.sleep(4)  # as one that saves the model
if asked.end == "raised":
    raise RuntimeError("the training failed")
if asked.end == "destroyed":
    dist.destroy_process_group()
