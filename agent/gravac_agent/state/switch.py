"""Changing codec, error memory or collective in the middle of a job, on all ranks and without losing the residual."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from gravac import memories, registry
from gravac.aggregators import Aggregator, OneShot
from gravac.memories import convert
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import check_equal
from gravac_agent.settings import spelled
from gravac_agent.setup.build import Parts


def switch(parts: Parts, compressor: str | None, memory: str | None, collective: str | None) -> None:
    """Change what is not None. Every rank calls it, between steps.

    Raises:
        SetupError: When the change is not possible; nothing is changed then.
        AgreementError: On all ranks, when their arguments differ.
    """
    channels, loop = parts.channels, parts.loop
    change = {"compressor": compressor, "memory": memory, "collective": collective}
    for name, text in change.items():
        if not isinstance(text, str | None):
            raise SetupError(f"{name}={text!r:.100} must be a text, as in Agent(..., {name}='…')")
    if not any(change.values()):
        raise SetupError("switch() has nothing to change: pass compressor=, memory= or collective=")
    try:
        compressor, memory, collective = (text and spelled(text) for text in (compressor, memory, collective))
        builder = replace(parts.builder, collective=collective or parts.builder.collective)
        aggregator = (
            builder.build(compressor or channels.compressor, parts.metered)
            if compressor or collective
            else None
        )
        others = (
            [builder.build(text, parts.metered) for text in channels.codecs[1:]]
            if collective
            else list(channels.aggregators[1:])
        )
        new_memory = None if memory is None else memories.build(memory)
    except ValueError as error:
        raise SetupError(str(error)) from None
    change = {"compressor": compressor, "memory": memory, "collective": collective}
    plugins = registry.plugins(*filter(None, change.values()))
    parts.executor.run(
        lambda: check_equal(change | {"step": loop.step, "plugins": plugins}, parts.tick_group)
    )
    changes, kept = [], channels.memory
    if new_memory is not None:
        new_memory.world_size = kept.world_size  # under HSDP fewer than all
        changes.append(f"memory {kept.spec} -> {new_memory.spec}")
        try:
            kept = convert(kept, new_memory)
        except ValueError as error:
            raise SetupError(f"memory={memory!r} cannot take over the residual: {error}") from None
    if aggregator is not None:
        for one in (aggregator, *others) if collective else (aggregator,):
            parts.executor.run(partial(builder.fit, one, parts.metered))
        if collective:
            for old, new in zip(channels.aggregators[1:], others, strict=True):
                new.load_state_dict(_codec_state(old))
        if compressor is None:
            aggregator.load_state_dict(_codec_state(channels.aggregator))
        else:
            changes.append(f"compressor {channels.compressor} -> {compressor}")
        if collective is not None:
            changes.append(f"collective {parts.builder.collective} -> {collective}")
        parts.builder.collective, parts.builder.network = builder.collective, builder.network
        loop.schedule.announcement.add(str(builder))
    codecs = (compressor or channels.compressor, *channels.codecs[1:])
    channels.change(kept, codecs, (aggregator or channels.aggregator, *others))
    loop.forget_gains(f"Step {loop.step}: {', '.join(changes)}. Gains are measured again.")
    loop.begin_step()


def _codec_state(aggregator: Aggregator) -> dict[str, Tensor]:
    """Return what was learned about the gradient, without what was learned about the network."""
    return (aggregator.compressor if isinstance(aggregator, OneShot) else aggregator).state_dict()
