"""Two levels of links: what ranks exchange inside their host, and what is left for the link between hosts."""

from dataclasses import dataclass, replace

from gravac.collectives import Network, cost
from gravac.predict.exchange import VALUE_BYTES, Volume, volume, volume_of_rounds
from gravac.protocol import JobSpec
from gravac.wording import format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Levels:
    """How the ranks of a host divide a gradient. With one level of links, each rank counts as a host.

    Attributes:
        ranks: Ranks of a host; 1: there is one level.
        inside: Latency and bandwidth of a rank inside its host; None: there is one level.
    """

    ranks: int = 1
    inside: Network | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> "Levels":
        """Return the levels of a job."""
        found = spec.hosts
        if found is None:
            return cls()
        inside = Network(
            latency_seconds=found.inside_latency_seconds, bytes_per_second=found.inside_bytes_per_second
        )
        return cls(found.ranks, inside)

    def hosts(self, ranks: int) -> int:
        """Return the number of hosts. Raises ValueError where ``ranks`` do not fill several."""
        if self.inside is not None and (ranks % self.ranks or ranks < 2 * self.ranks):
            raise ValueError(
                f"ranks={ranks}: the job divides gradients among the {self.ranks} ranks of a host, so give a multiple "
                f"of {self.ranks}, from {2 * self.ranks} on"
            )
        return ranks // self.ranks

    def elements(self, whole: int) -> int:
        """Return the elements that a rank exchanges with other hosts, of those of a gradient."""
        return whole // self.ranks

    def seconds(self, whole: int) -> float:
        """Return what the ranks of a host take to divide a gradient and to put its mean together."""
        return 0.0 if self.inside is None else cost.all_reduce(self.inside, self.ranks, VALUE_BYTES * whole)

    def words(self, ranks: int, whole: int) -> str:
        """Return what a step of these ranks exchanges where, for people; empty: there is one level."""
        if self.inside is None:
            return ""
        return (
            f"{self.hosts(ranks)} hosts of {self.ranks} ranks, which divide each gradient: "
            f"{format_seconds(self.seconds(whole))} a step inside a host (at "
            f"{format_rate(8 * self.inside.bytes_per_second)} a rank), then each rank exchanges 1/{self.ranks} of it. "
            "Rates are of a host's link, which its ranks share."
        )

    def volume(
        self, compressor: str, whole: int, cf: float, ranks: int, network: Network, aged: bool
    ) -> Volume:
        """Return the exchange of a gradient of ``whole`` elements; see ``gravac.predict.exchange.volume``."""
        found = volume(compressor, self.elements(whole), cf, self.hosts(ranks), network, aged=aged)
        return replace(found, inside_seconds=self.seconds(whole))

    def volume_of_rounds(self, payload_bytes: float, whole: int, ranks: int) -> Volume:
        """Return that of a multi-round aggregator; see ``gravac.predict.exchange.volume_of_rounds``."""
        found = volume_of_rounds(payload_bytes, self.hosts(ranks))
        return replace(found, inside_seconds=self.seconds(whole))
