"""Loopless SVRG: the noise of a sample is subtracted at a remembered point where the true gradient is known."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from gravac_lab.estimators.base import Estimator, EstimatorSample, FiniteSum
from gravac_lab.estimators.importance import Importance, Uniform


class LSVRG(Estimator):
    """Subtracts the noise of a sample at a remembered point w, where the true gradient is known.

    ``g = w_j grad f_j(x) - w_j grad f_j(w) + grad f(w)``: the same sample and weight in both terms, sampled by
    ``base``. After a step w becomes the point before it with probability ``refresh`` (each worker tosses its own coin).
    At ``x = w`` the estimate is exact. Costs ``2 + refresh * m`` gradients per step (3 by default) and two vectors.
    """

    name: ClassVar[str] = "lsvrg"
    source: ClassVar[str] = "Kovalev et al. 2020; EC-LSVRG: Danilova & Gorbunov 2022 (arXiv 2203.02383)"
    exact_at_optimum: ClassVar[bool] = True

    def __init__(self, base: Estimator, refresh: float | None = None) -> None:
        """``refresh``: probability of moving w, in (0, 1]; None means 1/m. Raises ValueError outside, or for a base
        that is itself variance reduced (it would subtract the noise twice)."""
        if base.exact_at_optimum:
            raise ValueError(f"base={base.name!r} already reduces variance; wrap uniform or importance")
        refresh = 1.0 / base.samples if refresh is None else refresh
        if not 0.0 < refresh <= 1.0:
            raise ValueError(f"refresh={refresh} is not in (0, 1]")
        self.base = base
        self.refresh = refresh
        self._set_probability(base.probability)
        self._point: Tensor | None = None
        self._gradient: Tensor | None = None

    @classmethod
    def over(cls, scores: Tensor, *, base: str = Uniform.name, refresh: float | None = None) -> Self:
        bases: dict[str, type[Estimator]] = {kind.name: kind for kind in (Uniform, Importance)}
        if base not in bases:
            raise ValueError(f"base={base!r} of lsvrg is unknown; choose one of {', '.join(sorted(bases))}")
        return cls(bases[base].over(scores), refresh)

    @property
    def point(self) -> Tensor | None:
        """w, shape ``(d,)``; None before the first gradient."""
        return self._point

    def gradient(self, problem: FiniteSum, x: Tensor, sample: EstimatorSample) -> Tensor:
        return self.base.gradient(problem, x, sample) + self.correction(problem, x, sample)

    def correction(self, problem: FiniteSum, x: Tensor, sample: EstimatorSample) -> Tensor:
        """``grad f(w) - w_j grad f_j(w)``, shape ``(d,)``: add it to a gradient that autograd made at ``x``.

        Mean zero over draws. On the first call w is set to ``x``.
        """
        if self._point is None or self._gradient is None:
            self._move(problem, x)
        assert self._point is not None
        assert self._gradient is not None
        return self._gradient - self.base.gradient(problem, self._point, sample)

    def after_step(self, problem: FiniteSum, x_old: Tensor, generator: torch.Generator) -> None:
        # The coin is tossed whatever happens, so that the draws that follow do not depend on its outcome.
        if float(torch.rand((), generator=generator, dtype=torch.float64)) < self.refresh:
            self._move(problem, x_old)

    def nbytes(self) -> int:
        return sum(held.nbytes for held in (self._point, self._gradient) if held is not None)

    def state_dict(self) -> dict[str, Tensor]:
        if self._point is None or self._gradient is None:
            return {}
        return {"point": self._point.clone(), "gradient": self._gradient.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if not state:
            self._point = self._gradient = None
            return
        if set(state) != {"point", "gradient"}:
            raise ValueError(f"state of lsvrg has {sorted(state)}; expected 'gradient' and 'point'")
        if state["point"].dim() != 1 or state["point"].shape != state["gradient"].shape:
            shapes = [tuple(state[key].shape) for key in ("point", "gradient")]
            raise ValueError(f"state of lsvrg has shapes {shapes}; point and gradient must both be (d,)")
        self._point, self._gradient = state["point"].detach().clone(), state["gradient"].detach().clone()

    def _move(self, problem: FiniteSum, x: Tensor) -> None:
        self._point = x.detach().clone()
        self._gradient = problem.full_gradient(self._point).detach().clone()
