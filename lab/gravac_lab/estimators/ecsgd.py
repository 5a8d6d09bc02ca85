"""EC-SGD: n workers in one process, each with its data, estimator and error memory (arXiv 2203.02383, order kept).

u_i = e_i/γ + g_i;  v_i = γ C(u_i);  x <- x - mean(v_i);  e_i <- e_i + γ g_i - v_i;  then the coins of L-SVRG

Memories hold ``e_i / γ`` (learning rate outside), so a codec sees gradient units, which a threshold needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.compressors import Compressor, Key
from gravac.memories import Bucket, Memory
from gravac_lab.estimators.base import Estimator, FiniteSum


@dataclass(slots=True, kw_only=True)
class Worker:
    """One rank of the loop; nothing here is shared with another worker."""

    problem: FiniteSum
    estimator: Estimator
    memory: Memory
    compressor: Compressor


class EcSgdStep(NamedTuple):
    """What one step cost and left out, summed over workers."""

    payload_bytes: int
    """Bytes handed to the collective, values and indices included."""
    values: int
    """Elements of the payloads' first parts: with a selector, coordinates sent."""
    error_sq: float
    """``sum_i ||u_i - C(u_i)||²`` in gradient units, which the total error adds up."""
    gradient_sq: float
    """``sum_i ||g_i||²``."""


class ECSGD:
    """The EC-SGD loop. ``x`` is replaced, never changed in place, so a caller may store it.

    Args:
        x: The start, shape ``(d,)``, any floating dtype.
        workers: One per rank.
        step_size: γ, above 0.
        cf: The CF that codecs are asked for, at least 1.
        seed: Fixes samples, coins and shared indices.
        wire_dtype: The dtype that values have on the wire.

    Raises:
        ValueError: There are no workers, or the step size or CF is out of range.
    """

    def __init__(
        self,
        x: Tensor,
        workers: Sequence[Worker],
        *,
        step_size: float,
        cf: float = 1.0,
        seed: int = 0,
        wire_dtype: torch.dtype = torch.float32,
    ) -> None:
        if not workers:
            raise ValueError("workers is empty; EC-SGD needs at least 1")
        if not cf >= 1.0:
            raise ValueError(f"cf={cf} must be at least 1")
        self.x = x.detach().clone()
        self.steps = 0
        self.payload_bytes = 0
        """Sum over steps and workers."""
        self.values = 0
        """The same of ``EcSgdStep.values``."""
        self.total_error = 0.0
        """``sum_k sum_i ||u_i - C(u_i)||²``; with exact error feedback ``sum_k sum_i ||e_i||² / γ²``, e_i after step k.

        What absolute compressors minimize (Sahu et al. 2021), and what compressed runs can be compared by.
        """
        self._workers = tuple(workers)
        self._cf, self._seed, self._dtype = cf, seed, wire_dtype
        self._bucket = Bucket(0, ("x",), (x.numel(),))
        self._step_size = _positive(step_size)
        self._generators = [
            torch.Generator().manual_seed(Key(seed, 0, 0, rank).own_seed()) for rank in range(len(workers))
        ]

    @property
    def step_size(self) -> float:
        """γ. Setting it rescales the residuals, so that a change of γ loses nothing."""
        return self._step_size

    @step_size.setter
    def step_size(self, value: float) -> None:
        for worker in self._workers:
            worker.memory.rescale(self._step_size / _positive(value))
        self._step_size = value

    def step(self) -> EcSgdStep:
        """Runs one step of all workers."""
        x_old = self.x
        mean = torch.zeros_like(x_old)
        payload_bytes, values, error_sq, gradient_sq = 0, 0, 0.0, 0.0
        for rank, worker in enumerate(self._workers):
            sample = worker.estimator.draw(self._generators[rank])
            gradient = worker.estimator.gradient(worker.problem, x_old, sample)
            gradient_sq += float(gradient.dot(gradient))
            part = worker.memory.open(self._bucket)
            u = part.compensate(gradient)
            codec = worker.compressor
            payload = codec.compress(u, self._cf, Key(self._seed, self.steps, 0, rank), self._dtype)
            sent = torch.zeros_like(u)
            codec.decompress(payload, sent)
            left = u - sent
            error_sq += float(left.dot(left))
            mean.add_(sent, alpha=1.0 / len(self._workers))
            part.update(codec, payload)
            worker.memory.commit()
            codec.commit()
            payload_bytes += payload.nbytes
            values += payload.values.numel()
        self.x = x_old - self._step_size * mean
        for worker, generator in zip(self._workers, self._generators, strict=True):
            worker.estimator.after_step(worker.problem, x_old, generator)
        self.steps += 1
        self.payload_bytes += payload_bytes
        self.values += values
        self.total_error += error_sq
        return EcSgdStep(payload_bytes, values, error_sq, gradient_sq)


def _positive(step_size: float) -> float:
    if not 0.0 < step_size < float("inf"):
        raise ValueError(f"step_size={step_size} must be above 0 and finite")
    return step_size
