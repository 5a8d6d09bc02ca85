"""Sinks, one per file: where rank 0 writes its figures. To add one, write its file and name its class in ``SINKS``."""

from gravac.registry import Registry, construct, parse_settings
from gravac_agent.errors import SetupError
from gravac_agent.sinks.base import Sink, SinkRow
from gravac_agent.sinks.mlflow import MlflowSink
from gravac_agent.sinks.otlp import OtlpSink
from gravac_agent.sinks.tensorboard import TensorBoardSink
from gravac_agent.sinks.trackio import TrackioSink
from gravac_agent.sinks.wandb import WandbSink

SINKS: Registry[Sink] = Registry(
    "sink",
    (MlflowSink, OtlpSink, TensorBoardSink, TrackioSink, WandbSink),
    base=Sink,
    group="gravac.sinks",
)


def parse(text: str) -> tuple[Sink, ...]:
    """Build sinks from ``name`` or ``name:setting=value,…``, several of them with ``;`` between; ``none``: none.

    Raises:
        ValueError: There is no such sink or setting. The message names what there is.
    """
    found = []
    for each in (part.strip() for part in text.split(";")):
        if each not in ("", "none"):
            name, _, rest = (part.strip() for part in each.partition(":"))
            settings = parse_settings(rest, f"sink={each!r}: ", as_texts=True)
            found.append(construct(SINKS.find(name), each, settings, what="sink"))
    return tuple(found)


def split(given: object) -> tuple[str | None, tuple[Sink, ...]]:
    """Return what a keyword names, as ``parse`` reads it (None: not given), and the sinks of the objects in it.

    Raises:
        SetupError: It is neither.
    """
    things = given if isinstance(given, list | tuple) else [] if given is None else [given]
    texts = [thing for thing in things if isinstance(thing, str)]
    named = None if given is None else ";".join(texts) or "none"
    return named, tuple(of(thing) for thing in things if not isinstance(thing, str))


def of(thing: object) -> Sink:
    """Return the sink for an object of a client, such as a run of Weights & Biases, or a sink as it is.

    Raises:
        SetupError: No sink takes it.
    """
    if isinstance(thing, Sink):
        return thing
    for kind in SINKS.values():
        if kind.takes(thing):
            return kind(thing)
    known = ", ".join(sorted(name for kind in SINKS.values() for name in kind.objects))
    raise SetupError(
        f"sink={thing!r:.100}: write a name ({', '.join(SINKS.names())}), or pass an object of {known}"
    )


__all__ = ["SINKS", "Sink", "SinkRow", "of", "parse", "split"]
