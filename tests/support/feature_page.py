"""Writes docs/features.md from a run of all features: ``python -m tests.support.feature_page > docs/features.md``."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.ranks.harness import run_ranks

Results = dict[str, dict[str, dict[str, Any]]]
"""What one rank found: by feature, by way of training."""

# ruff: noqa: E501 (prose of a page has longer lines)
HEAD = """# Features of DDP

Each row is one way to train with `DistributedDataParallel`, with two real ranks over gloo and several buckets, on a small net that learns noisy
labels. A test runs all of them ([test_features.py](../tests/ranks/test_features.py)) and checks this page.

- *Bit-equal*: the parameters at the end are those of plain DDP, bit for bit, both with `enabled=False` and with an agent that sends
  uncompressed gradients (`policy="dense"`).
- The losses are held-out losses after the last step, and how they compare with plain DDP's. The fourth column is
  `nearest:levels=15` (4 bits per element, 7.5 times fewer bytes), Top-k is `topk+bf16` at a compression factor of 10, both with error feedback
  (`memory="residual"`). The test demands that the former stays within 1 %.

| feature | bit-equal | plain DDP | 4 bits | Top-k 10x |
|---|---|---:|---:|---:|
"""

TAIL = """
[My script has no Trainer](training-loop.md) shows how to write them.

Written by `python -m tests.support.feature_page`. Losses may differ in the last digit on another machine.

## What is refused

- `torch._dynamo.config.optimize_ddp = "python_reducer"` (compiled autograd): it exchanges gradients inside the compiled graph. The agent says so
  when it starts.
- A second communication hook on the module, such as that of `_apply_optimizer_in_backward`; another agent on the same parameters.
- `Join(..., divide_by_initial_world_size=False)`.
- FSDP2 models on a GPU, modules on several GPUs of one process, and CUDA graphs that capture backward ([on GPUs](gpus.md)).

## Notes

- Sparse gradients are sent as plain DDP sends them; the rest of the module is compressed. A log line says so once.
- A copy of the module has no agent: `AveragedModel(module)`, `copy.deepcopy`, `torch.save`.
- With `torch.compile`, set DDP's `bucket_cap_mb` to at least 1.
"""


def is_bit_equal(found: dict[str, dict[str, Any]]) -> bool:
    """Whether an agent that is off and one that sends whole gradients change nothing."""
    return found["plain"]["parameters"] == found["disabled"]["parameters"] == found["dense"]["parameters"]


def page(results: Results) -> str:
    """Return the page."""
    rows = []
    for feature, found in results.items():
        plain = found["plain"]["loss"]
        losses = [
            f"{found[how]['loss']:.3f} ({found[how]['loss'] / plain - 1:+.1%})" for how in ("int4", "topk")
        ]
        equal = "yes" if is_bit_equal(found) else "no"
        rows.append(f"| {feature} | {equal} | {plain:.3f} | {' | '.join(losses)} |\n".replace("%", " %"))
    return HEAD + "".join(rows) + TAIL


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(page(run_ranks(Path(folder), "features")[0]))
