"""Regularised logistic regression spread over workers: ``f_ij(x) = ln(1 + exp(-y <a, x>)) + (l2/2) ||x||²``."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gravac_lab.estimators import EstimatorSample


@dataclass(frozen=True, slots=True)
class Logistic:
    """One worker's losses. ``rows`` = y a, float64 ``(m, d)``."""

    rows: Tensor
    l2: float

    @property
    def samples(self) -> int:
        return len(self.rows)

    def smoothness(self) -> Tensor:
        """L_ij = ||a_ij||²/4 + l2, shape ``(m,)``."""
        return self.rows.square().sum(1) / 4 + self.l2

    def gradient(self, x: Tensor, sample: EstimatorSample) -> Tensor:
        if len(sample.indices) == 1:
            return self._gradient_of_one(x, int(sample.indices), float(sample.weights))
        rows = self.rows[sample.indices]
        slope = torch.sigmoid(-(rows @ x)).mul_(sample.weights)
        return torch.add(self.l2 * float(sample.weights.mean()) * x, slope @ rows, alpha=-1.0 / len(rows))

    def _gradient_of_one(self, x: Tensor, index: int, weight: float) -> Tensor:
        """One short row: the same in numpy, whose calls cost a fifth of torch's. Runs make a hundred thousand."""
        row, at = self.rows[index].numpy(), x.numpy()
        slope = weight / (1.0 + math.exp(min(float(row @ at), 700.0)))
        return torch.from_numpy(self.l2 * weight * at - slope * row)

    def full_gradient(self, x: Tensor) -> Tensor:
        return self.l2 * x - self.rows.T @ torch.sigmoid(-(self.rows @ x)) / self.samples


@dataclass(frozen=True, slots=True)
class Problem:
    """The mean of the workers' losses, its constants and its optimum."""

    name: str
    workers: tuple[Logistic, ...]
    smoothness: float
    """L of f, l2 included."""
    best_x: Tensor
    best: float
    """f*."""

    @property
    def size(self) -> int:
        """d."""
        return self.best_x.numel()

    def loss(self, x: Tensor) -> float:
        """f(x)."""
        losses = [softplus(-(worker.rows @ x)).mean() for worker in self.workers]
        return float(torch.stack(losses).mean() + self.workers[0].l2 / 2 * x.dot(x))

    def heterogeneity(self) -> float:
        """ζ*² = mean_i ||grad f_i(x*)||²."""
        return float(torch.stack([w.full_gradient(self.best_x).square().sum() for w in self.workers]).mean())

    def constants(self) -> dict[str, float]:
        """What step sizes follow from, l2 left out as is usual: L, mean L_ij, max_i mean_j, max_ij."""
        l2 = self.workers[0].l2
        smoothness = torch.stack([w.smoothness() for w in self.workers]) - l2
        return {
            "workers": len(self.workers),
            "samples": self.workers[0].samples,
            "size": self.size,
            "L": self.smoothness - l2,
            "L_mean": float(smoothness.mean()),
            "L_importance": float(smoothness.mean(1).max()),
            "L_uniform": float(smoothness.max()),
            "best": self.best,
            "heterogeneity": self.heterogeneity(),
        }


def spread(name: str, features: Tensor, labels: Tensor, workers: int, order: Tensor) -> Problem:
    """Rows in this order, dealt out in equal runs; l2 = L / 10⁴. A remainder is left out."""
    each = len(features) // workers
    rows = (features * labels[:, None])[order][: each * workers]
    smoothness = _largest_eigenvalue(rows) / (4 * len(rows))
    l2 = smoothness / 1e4
    together = Logistic(rows, l2)
    best_x = _newton(together)
    problem = Problem(
        name, tuple(Logistic(part, l2) for part in rows.split(each)), smoothness + l2, best_x, 0.0
    )
    return Problem(name, problem.workers, problem.smoothness, best_x, problem.loss(best_x))


def _largest_eigenvalue(rows: Tensor) -> float:
    """Of ``rows.T @ rows``, by power iteration."""
    v = torch.ones(rows.shape[1], dtype=rows.dtype) / rows.shape[1] ** 0.5
    value = 0.0
    for _ in range(1000):
        v = rows.T @ (rows @ v)
        before, value = value, float(v.norm())
        v /= value
        if abs(value - before) <= 1e-12 * value:
            break
    return value


def _newton(f: Logistic) -> Tensor:
    """argmin f, by damped Newton steps; each is solved by conjugate gradients, which need no d-by-d matrix."""
    x = torch.zeros(f.rows.shape[1], dtype=f.rows.dtype)

    def value(at: Tensor) -> float:
        return float(softplus(-(f.rows @ at)).mean() + f.l2 / 2 * at.dot(at))

    for _ in range(60):
        gradient = f.full_gradient(x)
        size = float(gradient.norm())
        if size < 1e-11 * max(1.0, float(f.rows.norm()) / len(f.rows) ** 0.5):
            return x
        step = _solve(f, x, gradient, tolerance=min(0.1, size) * size)
        now, slope, length = value(x), float(gradient.dot(step)), 1.0
        # The last bits of f cannot show progress any more: near the optimum trust the full step.
        while value(x - length * step) > now - 1e-4 * length * slope + 1e-15 and length > 1e-8:
            length /= 2
        x = x - length * step
    raise RuntimeError(f"Newton did not converge: gradient norm {size:.3g}")


def _solve(f: Logistic, x: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Solution of ``Hessian(x) s = b`` to a residual norm of ``tolerance``."""
    probability = torch.sigmoid(f.rows @ x)
    curvature = probability * (1 - probability) / f.samples
    s, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), float(r.dot(r))
    for _ in range(5000):
        if rr**0.5 <= tolerance:
            break
        hp = f.rows.T @ (curvature * (f.rows @ p)) + f.l2 * p
        alpha = rr / float(p.dot(hp))
        s.add_(p, alpha=alpha)
        r.sub_(hp, alpha=alpha)
        rr, before = float(r.dot(r)), rr
        p.mul_(rr / before).add_(r)
    return s
