"""Another codec, error memory or collective in the middle of a job: agreed by all ranks, and nothing owed is lost."""

from dataclasses import replace

from torch import Tensor

from gravac import memories, registry
from gravac.aggregators import Aggregator, OneShot
from gravac.memories import convert
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agree import same_everywhere
from gravac_agent.settings import spelled
from gravac_agent.setup.build import Parts


def switch(parts: Parts, compressor: str | None, memory: str | None, collective: str | None) -> None:
    """Between steps, on every rank. Raises SetupError for what cannot be, before anything changed, and AgreementError
    on all ranks when they were told different things."""
    encoder, loop = parts.encoder, parts.loop
    try:
        compressor, memory, collective = (text and spelled(text) for text in (compressor, memory, collective))
        wire = replace(parts.wire, collective=collective or parts.wire.collective)
        aggregator = (
            wire.build(compressor or encoder.compressor, parts.metered) if compressor or collective else None
        )
        owed = None if memory is None else memories.build(memory)
    except ValueError as error:
        raise SetupError(str(error)) from None
    asked = {"compressor": compressor, "memory": memory, "collective": collective}
    plugins = registry.plugins(*filter(None, asked.values()))
    parts.engine.run(
        lambda: same_everywhere(asked | {"step": loop.step, "plugins": plugins}, parts.tick_group)
    )
    said = []
    if owed is not None:
        owed.world_size = parts.world_size
        said.append(f"memory {encoder.memory.spec} -> {owed.spec}")
        try:
            encoder.memory = convert(encoder.memory, owed)
        except ValueError as error:
            raise SetupError(f"memory={memory!r} cannot take over what is owed: {error}") from None
    if aggregator is not None:
        parts.engine.run(lambda: wire.settle(aggregator, parts.metered))
        if compressor is None:
            aggregator.load_state_dict(_of_codec(encoder.aggregator))
        else:
            said.append(f"compressor {encoder.compressor} -> {compressor}")
        if collective is not None:
            said.append(f"collective {parts.wire.collective} -> {collective}")
        encoder.aggregator, encoder.compressor = aggregator, compressor or encoder.compressor
        parts.wire.collective, parts.wire.network = wire.collective, wire.network
        loop.agree_on(str(wire))
    encoder.failing.forget()
    loop.forget_gains(f"Step {loop.step}: {', '.join(said)}. Gains are measured anew.")
    parts.engine.begin(loop.plan, loop.step)


def _of_codec(aggregator: Aggregator) -> dict[str, Tensor]:
    """What was learnt of the gradient, and not of how it travels."""
    return (aggregator.compressor if isinstance(aggregator, OneShot) else aggregator).state_dict()
