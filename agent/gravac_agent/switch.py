"""Another codec or error memory in the middle of a job: agreed by all ranks, and nothing owed is lost."""

import threading

from gravac import aggregators, memories
from gravac.memories import convert
from gravac_agent.agree import same_everywhere
from gravac_agent.build import Parts
from gravac_agent.errors import SetupError


def switch(parts: Parts, compressor: str | None, memory: str | None) -> None:
    """Between steps, on every rank. Raises SetupError for what cannot be, before anything changed, and AgreementError
    on all ranks when they were told different things."""
    encoder, loop = parts.encoder, parts.loop
    try:
        aggregator = None if compressor is None else aggregators.build(compressor, parts.metered)
        owed = None if memory is None else memories.build(memory)
    except ValueError as error:
        raise SetupError(str(error)) from None
    _agree(parts, {"compressor": compressor, "memory": memory, "step": loop.step})
    said = []
    if owed is not None:
        owed.world_size = parts.world_size
        said.append(f"memory {encoder.memory.spec} -> {owed.spec}")
        try:
            encoder.memory = convert(encoder.memory, owed)
        except ValueError as error:
            raise SetupError(f"memory={memory!r} cannot take over what is owed: {error}") from None
    if aggregator is not None:
        said.append(f"compressor {encoder.compressor} -> {compressor}")
        encoder.aggregator, encoder.compressor = aggregator, str(compressor)
    loop.forget_gains(f"Step {loop.step}: {', '.join(said)}. Gains are measured anew.")
    parts.engine.begin(loop.plan, loop.step)


def _agree(parts: Parts, what: dict[str, object]) -> None:
    """On the exchange thread, which alone uses the tick group."""
    done, failed = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            same_everywhere(what, parts.tick_group)
        except Exception as error:
            failed.append(error)
        finally:
            done.set()

    parts.engine.call(ask)
    done.wait()
    if failed:
        raise failed[0]
