"""A loop in torchtitan's manner, with its model and its FSDP2 setup, and gravac: see docs/frameworks/torchtitan.md."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torchtitan.models.llama3 import Transformer, TransformerModelArgs
from torchtitan.models.llama3.infra.parallelize import apply_fsdp

from gravac import Agent


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ranks, tokens = dist.get_world_size(), 64
    text = torch.tensor(
        list(b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("a*.py"))))
    )
    draw = torch.Generator().manual_seed(dist.get_rank())
    model = Transformer(
        TransformerModelArgs(dim=64, n_layers=2, n_heads=4, vocab_size=256, max_seq_len=tokens)
    )
    with torch.no_grad():
        model.init_weights()
    mesh = init_device_mesh("cpu", (ranks,))
    apply_fsdp(model, mesh, torch.float32, torch.float32, pp_enabled=False)  # adds gradients up
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with Agent(model, optimizer) as agent:
        for step in range(100):
            at = torch.randint(len(text) - tokens, (8,), generator=draw)
            pieces = text.unfold(0, tokens + 1, 1)[at]
            inputs, labels = pieces[:, :-1], pieces[:, 1:]
            valid = torch.tensor(float(labels.numel()))
            dist.all_reduce(valid)  # tokens of all ranks
            loss = cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), reduction="sum") / valid
            loss.backward()
            agent.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            agent.log(loss=loss * ranks)
            if dist.get_rank() == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item() * ranks:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
