"""Text to learn from that every machine has: the source code of Python's library and of torch, cut into words."""

import re
import sysconfig
from collections import Counter
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

MOST_BYTES = 24_000_000
HELDOUT_EVERY = 10
"""Every tenth file is held out, whole."""
_WORD = re.compile(rb"\w+|[^\w\s]| +|\s")


def words(vocabulary: int, most_bytes: int = MOST_BYTES) -> tuple[Tensor, Tensor]:
    """Return training and held-out text as numbers of words, int64 of one dimension; 0 is any rare word."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    left = most_bytes
    for number, path in enumerate(_files()):
        found = _WORD.findall(path.read_bytes()[:left])
        parts[number % HELDOUT_EVERY == HELDOUT_EVERY - 1].extend(found)
        left -= sum(map(len, found))
        if left <= 0:
            break
    numbers = {
        word: n for n, (word, _) in zip(count(1), Counter(parts[0]).most_common(vocabulary - 1), strict=False)
    }
    train, heldout = (
        torch.tensor([numbers.get(word, 0) for word in part], dtype=torch.int64, device="cpu")
        for part in parts
    )
    return train, heldout


def _files() -> list[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    own = [path for path in library.rglob("*.py") if "site-packages" not in path.parts]
    return sorted(own) + sorted(Path(torch.__file__).parent.rglob("*.py"))
