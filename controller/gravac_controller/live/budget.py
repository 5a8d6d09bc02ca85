"""A bound on what all jobs together keep in memory: the job that was quiet for longest forgets its oldest windows."""

from collections import OrderedDict

from gravac_controller.live.recent import Recent

SLACK = 0.95
"""Once it is over the bound, memory is freed down to this share of it, so that not every window frees some."""


class Budget:
    """Counts the bytes of every job's ``Recent`` and keeps their sum at ``most`` or below.

    Lives on the event loop. A job's newest window and decision are never forgotten.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._jobs: OrderedDict[str, tuple[Recent, int]] = OrderedDict()  # quiet for longest first

    def changed(self, job: str, recent: Recent) -> None:
        """A job kept or forgot something: it is the one heard of last. Others, or it, forget what is too much."""
        _, counted = self._jobs.pop(job, (recent, 0))
        self._jobs[job] = (recent, recent.bytes)
        self.bytes += recent.bytes - counted
        if self.bytes > self.most:
            self._free()

    def _free(self) -> None:
        for job, (recent, _) in self._jobs.items():
            left = self.bytes - int(SLACK * self.most)
            if left <= 0:
                return
            self.bytes -= recent.forget(left)
            self._jobs[job] = (recent, recent.bytes)
