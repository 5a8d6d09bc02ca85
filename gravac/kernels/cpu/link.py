"""Puts an object file into memory, ready to run.

Linux on x86-64 needs nothing for it but the few kinds of relocations that LLVM uses there. Elsewhere llvmlite does it,
whose compiler takes 20 MB of each process.
"""

import ctypes
import logging
import mmap
import platform
import struct
import sys
from typing import Any, NamedTuple

log = logging.getLogger("gravac.kernels")
_SYMBOLS, _RELOCATIONS, _EMPTY = 2, 4, 8
"""Types of sections."""
_ALLOCATED = 2
"""Flag of sections that belong into memory."""
_ABSOLUTE, _RELATIVE = (1,), (2, 4)
"""Types of relocations: the address itself, or the distance to it in 32 bits."""
_JUMP = b"\xff\x25\x00\x00\x00\x00"
"""Jumps to the address in the next eight bytes, as functions of the system are further away than 32 bits reach."""
_STUB = 16
_kept: list[Any] = []
"""What holds the code, as long as the process lives."""


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


def link(code: bytes, names: tuple[str, ...]) -> dict[str, int]:
    """Return the addresses of these functions of an object file."""
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        try:
            found = _link_elf(code)
            return {name: found[name] for name in names}
        except (OSError, ValueError, AttributeError, struct.error) as error:
            log.debug("llvmlite links the kernels: %s", error)
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _kept.append(engine)
    return {name: engine.get_function_address(name) for name in names}


def _link_elf(code: bytes) -> dict[str, int]:
    """Return the addresses of all functions of an ELF file of x86-64.

    Raises:
        ValueError: It needs more than this knows.
        AttributeError: It calls a function that the process does not have.
        OSError: The system does not let this process make code.
    """
    (first,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    sections = [_Section(*struct.unpack_from("<4xIQ8xQQIIQ", code, first + 64 * i)) for i in range(count)]
    (table,) = (section for section in sections if section.kind == _SYMBOLS)
    symbols = list(struct.iter_unpack("<IBxHQ8x", code[table.offset : table.offset + table.size]))
    strings = sections[table.link].offset
    names = [code[strings + symbol[0] :].partition(b"\0")[0].decode() for symbol in symbols]

    places, size = {}, 0
    for number, section in enumerate(sections):
        if section.flags & _ALLOCATED:
            size += -size % max(1, section.align)
            places[number] = size
            size += section.size
    stubs = size + -size % _STUB
    memory = mmap.mmap(-1, stubs + _STUB * len(symbols), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, place in places.items():
        section = sections[number]
        if section.kind != _EMPTY:
            memory[place : place + section.size] = code[section.offset : section.offset + section.size]

    system, where = ctypes.CDLL(None), []
    for number, (_, _, section, value) in enumerate(symbols):
        place = places.get(section, 0) + value
        if not section and names[number]:
            place = stubs + _STUB * number
            function = ctypes.cast(getattr(system, names[number]), ctypes.c_void_p).value
            memory[place : place + 14] = _JUMP + struct.pack("<Q", function)
        where.append(place)
    for section in sections:
        if section.info not in places or section.kind != _RELOCATIONS:
            continue
        part = code[section.offset : section.offset + section.size]
        for offset, kind, number, addend in struct.iter_unpack("<QIIq", part):
            at, to = places[section.info] + offset, where[number] + addend
            if kind in _RELATIVE:
                struct.pack_into("<i", memory, at, to - at)
            elif kind in _ABSOLUTE:
                struct.pack_into("<Q", memory, at, base + to)
            else:
                raise ValueError(f"relocations of type {kind} are unknown")
    if system.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError("memory cannot be made executable")
    _kept.append(memory)
    return {name: base + where[number] for number, name in enumerate(names) if symbols[number][2]}
