"""The first step after a resume, in the buckets of the saved run.

A new DDP module groups its parameters provisionally for one step, and what a codec selects depends on the grouping. To
make a resumed run equal to an uninterrupted one, that step's gradients are regrouped into the saved buckets.
"""

import math
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from gravac.memories import Bucket
from gravac_agent.devices import Device
from gravac_agent.exchange.hook import real_shape
from gravac_agent.fsdp.model import DataParallel

Submit = Callable[[Bucket, Tensor, bool], torch.futures.Future[Tensor]]


class Regrouper:
    """Collects DDP's provisional buckets of one step and submits the saved ones instead."""

    def __init__(self, layout: list[Bucket]) -> None:
        self._layout = layout
        self.device: Device | None = None
        """Where the buckets are; None: in the host's memory."""
        self._waiting: list[tuple[Bucket, Tensor, torch.futures.Future[Tensor]]] = []
        self._left = len(layout)
        self._lock = threading.Lock()

    def submit(
        self, bucket: Bucket, buffer: Tensor, last: bool, submit: Submit
    ) -> torch.futures.Future[Tensor]:
        """Collect one provisional bucket; with the last one, submit all in the saved order.

        Args:
            bucket: Which parameters the buffer is made of.
            buffer: DDP's flat gradient, shape ``(n,)``.
            last: Whether it is the last bucket of the step.
            submit: Takes the saved buckets.

        Returns:
            A future of ``buffer``, holding the mean.
        """
        future: torch.futures.Future[Tensor] = (
            torch.futures.Future() if self.device is None else self.device.future()
        )
        self._waiting.append((bucket, buffer, future))
        if last:
            pieces = {
                name: piece
                for one, flat, _ in self._waiting
                for name, piece in zip(one.names, _pieces(one, flat), strict=True)
            }
            means = []
            for number, saved in enumerate(self._layout):
                views = [pieces[name] for name in saved.names]
                flat = views[0] if len(views) == 1 else torch.cat(views)
                mean = submit(saved, flat, number == len(self._layout) - 1)
                means.append((mean, views))
            self._scatter_all(means)
        return future

    def _scatter_all(self, means: list[tuple[torch.futures.Future[Tensor], list[Tensor]]]) -> None:
        """Copy the means into DDP's buckets and complete their futures."""
        if self.device is None:
            for mean, views in means:
                mean.add_done_callback(self._scatter(views))
            return
        # The exchange has completed them all. Callbacks would run on streams of their own; waiting orders this one.
        for mean, views in means:
            _copy(views, mean.wait())
        for _, buffer, future in self._waiting:
            future.set_result(buffer)

    def _scatter(self, views: list[Tensor]) -> Callable[[torch.futures.Future[Tensor]], None]:
        def done(mean: torch.futures.Future[Tensor]) -> None:
            try:
                flat = mean.value()
            except Exception as error:
                for _, _, future in self._waiting:
                    if not future.done():
                        future.set_exception(error)  # type: ignore[arg-type]
                return
            _copy(views, flat)
            with self._lock:
                self._left -= 1
                complete = self._left == 0
            if complete:
                for _, buffer, future in self._waiting:
                    future.set_result(buffer)

        return done


def _copy(views: list[Tensor], flat: Tensor) -> None:
    if len(views) > 1:  # a single one was reduced in place
        torch._foreach_copy_(views, list(torch.split(flat, [view.numel() for view in views])))


def _pieces(bucket: Bucket, flat: Tensor) -> tuple[Tensor, ...]:
    """Split a bucket by parameter. A sparse gradient is alone in its bucket."""
    return (flat,) if flat.is_sparse else torch.split(flat, list(bucket.numels))


def regrouper(layout: list[list[str]], module: DataParallel) -> Regrouper | None:
    """Make the regrouper for a checkpoint's layout.

    Args:
        layout: Parameter names by bucket.
        module: The module of the resumed run.

    Returns:
        None when the module has other parameters.
    """
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
