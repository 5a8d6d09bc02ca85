"""What a new part of a journal carries over of the parts before it, for people: sums, and the last events."""

from pydantic import Field

from gravac.protocol import Record
from gravac_controller.views.models import EventView, LastKnown, Totals

MOST_CHARACTERS = 150_000


class Carried(Record):
    """Sums over all parts before. Nothing is decided by them."""

    started_time: float
    last_report_time: float | None
    totals: Totals
    decisions_by_rule: dict[str, int]
    events_by_kind: dict[str, int]
    missing_windows: int
    phase_seconds: dict[str, float]
    dense_medians: tuple[float, ...]
    dense_exposed: tuple[float, ...]
    gradient_diversity: LastKnown | None
    batch_bound_samples: LastKnown | None
    events: tuple[EventView, ...] = Field(description="The last ones that fit.")

    def text(self) -> str:
        """As JSON, with as many of the last events as fit into a journal line."""
        carried = self
        while len(text := carried.model_dump_json()) > MOST_CHARACTERS and carried.events:
            carried = carried.model_copy(update={"events": carried.events[(len(carried.events) + 1) // 2 :]})
        return text
