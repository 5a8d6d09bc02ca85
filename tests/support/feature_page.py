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

Each row is one way to train with `DistributedDataParallel`: two real ranks over gloo, several buckets, and a small net that learns noisy labels.
[A test](../tests/ranks/test_features.py) runs all rows and checks this page.

- *Bit-equal* means that the parameters at the end are those of plain DDP, bit for bit, both with `enabled=False` and with an agent that sends
  uncompressed gradients (`policy="dense"`).
- Losses are held-out losses after the last step, with the difference from plain DDP. *4 bits* is `nearest:levels=15`, with 7.5 times fewer bytes.
  *Top-k 10x* is `topk+bf16` at a compression factor of 10. Both use error feedback (`memory="residual"`). The test demands that 4 bits stay within
  1 %.

| feature | bit-equal | plain DDP | 4 bits | Top-k 10x |
|---|---|---:|---:|---:|
"""

TAIL = """
[My script has no Trainer](training-loop.md) shows how to write them.

A command writes this page. Losses may differ in the last digit on another machine:

```sh
python -m tests.support.feature_page > docs/features.md
```

## What is refused

- `torch._dynamo.config.optimize_ddp = "python_reducer"` (compiled autograd), because it exchanges gradients inside the compiled graph. This is an
  error at the start.
- A second communication hook on the module, such as that of `_apply_optimizer_in_backward`, and another agent on the same parameters.
- `Join(..., divide_by_initial_world_size=False)`.
- Modules on several GPUs of one process, and CUDA graphs that capture backward ([on GPUs](gpus.md)).

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
        sys.stdout.write(page(run_ranks(Path(folder), "features", fresh=True)[0]))
