"""Compiles the kernels for the host: numba makes one object file of them, which ``load`` puts into memory.

Only the process that compiles imports numba, which takes 60 MB and more of it.
"""

import importlib
import json
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, config, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

F = TypeVar("F", bound=Callable[..., Any])
MODULES = (
    *("tally", "top", "sifting", "linalg", "bits", "rounding", "draws", "digits", "nearest", "huffman"),
    *("twobit", "adam"),
)
"""Modules of ``gravac.kernels.cpu`` with kernels."""
_CODES = {types.int64: "q", types.int32: "i", types.float32: "f", types.float64: "d", types.void: "-"}
_I64 = ir.IntType(64)
_SIZE = re.compile(r"\[(\w+)\]")
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""No exception, and nothing of numba's own memory management, which is not there when kernels run."""
_exported: dict[str, tuple[Any, str]] = {}


def jit(*signatures: str, in_any_order: bool = False, **exported: str) -> Callable[[F], F]:
    """Compile a function for these signatures only.

    The caller checks bounds, because a kernel does not notice an index outside an array. Kernels index with unsigned
    integers: numba then leaves out its test for negative ones, and loops can become vector code. They make no arrays
    but by ``room``.

    Args:
        *signatures: Of kernels that other kernels call.
        in_any_order: Whether sums of floats may be made in any order, so that a loop can become vector code.
        **exported: By name, those that Python calls. ``float32[n]`` stands for an array of n elements. Python gives
            the addresses of arrays, and behind all other arguments each named size once, in the order of their names.
    """

    def compile_(function: F) -> F:
        given = [*signatures, *(_SIZE.sub("[::1]", signature) for signature in exported.values())]
        kernel = numba.njit(given, fastmath={"reassoc"} if in_any_order else False, **_OPTIONS)(function)
        _exported.update({name: (kernel, signature) for name, signature in exported.items()})
        return cast(F, kernel)

    return compile_


def compile_all() -> bytes:
    """Return all kernels: a line that tells their names and types, and an object file."""
    level = vars(config)["OPT"]
    vars(config)["OPT"] = type(level)(0)  # all are optimized together, below
    try:
        for name in MODULES:
            importlib.import_module(f"gravac.kernels.cpu.{name}")
        functions = {name: _c_function(name, *kernel) for name, kernel in _exported.items()}
    finally:
        vars(config)["OPT"] = level
    modules = [llvm.parse_assembly(code) for code, _ in functions.values()]
    whole = modules[0]
    for module in modules[1:]:
        whole.link_in(module)
    for value in (*whole.functions, *whole.global_variables):
        if value.name not in functions and not value.is_declaration:
            value.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine(
        llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), 3, "pic", "small"
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(whole, passes)  # what is unused goes: how numba tells Python of errors
    code: bytes = machine.emit_object(whole)
    kinds = {name: kind for name, (_, kind) in functions.items()}
    head = json.dumps({"digest": sha256(code).hexdigest(), "kernels": kinds})
    return head.encode() + b"\n" + code


def _c_function(name: str, kernel: Any, signature: str) -> tuple[str, str]:
    """Return the code of a kernel with a function of C that calls it, and the types of that function."""
    args, result = sigutils.normalize_signature(_SIZE.sub("[::1]", signature))  # type: ignore[no-untyped-call]
    compiled, context = kernel.overloads[args], kernel.targetctx
    named = sorted({size for size in _SIZE.findall(signature) if not size.isdigit()})
    kinds = [context.get_value_type(getattr(kind, "dtype", kind)) for kind in args]
    for number, kind in enumerate(args):
        if isinstance(kind, types.Array):
            kinds[number] = kinds[number].as_pointer()
    library = context.codegen().create_library(name)
    module = library.create_ir_module(name)
    back = ir.VoidType() if result == types.void else context.get_value_type(result)
    function = ir.Function(module, ir.FunctionType(back, kinds + [_I64] * len(named)), name)
    builder = ir.IRBuilder(function.append_basic_block())
    given, sizes = list(function.args), iter(_SIZE.findall(signature))
    counts = dict(zip(named, given[len(args) :], strict=True))
    for number, kind in enumerate(args):
        if isinstance(kind, types.Array):
            size = next(sizes)
            count = ir.Constant(_I64, int(size)) if size.isdigit() else counts[size]
            given[number] = _filled(context, builder, kind, given[number], count)
    callee = context.declare_function(module, compiled.fndesc)
    _, value = context.call_conv.call_function(builder, callee, result, args, given[: len(args)])
    builder.ret_void() if result == types.void else builder.ret(value)
    library.add_ir_module(module)
    library.add_linking_library(compiled.library)
    with global_compiler_lock:
        library.finalize()
    letters = (_CODES[result], *("P" if isinstance(kind, types.Array) else _CODES[kind] for kind in args))
    return library.get_llvm_str(), "".join(letters) + "q" * len(named)


def _filled(context: Any, builder: Any, kind: Any, data: Any, size: Any) -> Any:
    item = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    step = context.get_constant(types.intp, item)
    array = context.make_array(kind)(context, builder)
    populate_array(array, data, (size,), (step,), step, None)  # type: ignore[no-untyped-call]
    return array._getvalue()


def _room(typing: Any, dtype: Any, size: Any) -> Any:
    """Return a small array on the stack, of a constant size, with anything in it."""
    kind = types.Array(dtype.dtype, 1, "C")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count = size.literal_value
        data = cgutils.alloca_once(  # type: ignore[no-untyped-call]
            builder, context.get_data_type(kind.dtype), count
        )
        data.align = 64  # of a cache line, which no vector should cross
        return _filled(context, builder, kind, data, context.get_constant(types.intp, count))

    return kind(dtype, size), emit


def _fused(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """Return ``x · y + z`` with one rounding, as torch adds a multiple of a tensor."""
    return types.float32(*[types.float32] * 3), lambda context, builder, signature, args: builder.fma(*args)


def _lowest(typing: Any, word: Any) -> Any:
    """Return the number of the lowest bit that is set. ``word`` is not zero."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(
        args[0], cgutils.false_bit
    )


room: Any = intrinsic(prefer_literal=True)(_room)
fused: Any = intrinsic(_fused)
lowest: Any = intrinsic(_lowest)
