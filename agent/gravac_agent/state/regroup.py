"""The first step after a resume, in the buckets of the run that was saved.

A new DDP module groups its parameters provisionally for one step, and what a codec keeps depends on the grouping. So
that a resumed run equals the uninterrupted one, that step's buckets are taken apart and put together as they were.
"""

import math
import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gravac.memories import Bucket
from gravac_agent.exchange.kinds import real_shape

Submit = Callable[[Bucket, Tensor, bool], torch.futures.Future[Tensor]]


class Regrouper:
    """Takes DDP's provisional buckets of one step and submits the saved ones in their place."""

    def __init__(self, layout: list[Bucket]) -> None:
        self._layout = layout
        self._waiting: list[tuple[Bucket, Tensor, torch.futures.Future[Tensor]]] = []
        self._left = len(layout)
        self._lock = threading.Lock()

    def submit(
        self, bucket: Bucket, buffer: Tensor, last: bool, submit: Submit
    ) -> torch.futures.Future[Tensor]:
        """One provisional bucket; on the last one everything is submitted in the saved order."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.append((bucket, buffer, future))
        if last:
            pieces = {
                name: piece
                for one, flat, _ in self._waiting
                for name, piece in zip(one.names, _pieces(one, flat), strict=True)
            }
            for number, saved in enumerate(self._layout):
                views = [pieces[name] for name in saved.names]
                flat = views[0] if len(views) == 1 else torch.cat(views)
                mean = submit(saved, flat, number == len(self._layout) - 1)
                mean.add_done_callback(self._scatter(views))
        return future

    def _scatter(self, views: list[Tensor]) -> Callable[[torch.futures.Future[Tensor]], None]:
        def done(mean: torch.futures.Future[Tensor]) -> None:
            try:
                flat = mean.value()
            except Exception as error:
                for _, _, future in self._waiting:
                    if not future.done():
                        future.set_exception(error)  # type: ignore[arg-type]
                return
            if len(views) > 1:  # else it was reduced in place
                torch._foreach_copy_(views, list(torch.split(flat, [view.numel() for view in views])))
            with self._lock:
                self._left -= 1
                complete = self._left == 0
            if complete:
                for _, buffer, future in self._waiting:
                    future.set_result(buffer)

        return done


def _pieces(bucket: Bucket, flat: Tensor) -> tuple[Tensor, ...]:
    """Each parameter's part; a sparse gradient is alone in its bucket."""
    return (flat,) if flat.is_sparse else torch.split(flat, list(bucket.numels))


def regrouper(layout: list[list[str]], module: DistributedDataParallel) -> Regrouper | None:
    """For the layout of a checkpoint (parameter names per bucket); None when ``module`` has other parameters."""
    shapes = {name: real_shape(p) for name, p in module.module.named_parameters() if p.requires_grad}
    if {name for names in layout for name in names} != set(shapes):
        return None
    return Regrouper(
        [
            Bucket(
                number,
                tuple(names),
                tuple(math.prod(shapes[name]) for name in names),
                tuple(shapes[name] for name in names),
            )
            for number, names in enumerate(layout)
        ]
    )
