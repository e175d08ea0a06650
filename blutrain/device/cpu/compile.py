"""All passes together: from a `@cuda.jit` function, block shape and types to a compiled kernel."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from numba import types

from blutrain.device.cpu import cache, native
from blutrain.device.cpu.emit import Emitter
from blutrain.device.cpu.executable import CompiledKernel, Order
from blutrain.device.cpu.normalise import normalise_kernel
from blutrain.device.cpu.options import Options
from blutrain.device.cpu.program import WARP, Program
from blutrain.device.cpu.ranges import Facts
from blutrain.device.cpu.regions import Builder
from blutrain.device.cpu.signatures import TypingError
from blutrain.device.cpu.source import Source, source_of
from blutrain.device.cpu.storage import place
from blutrain.device.cpu.syntax import meets_as_block
from blutrain.device.cpu.uniformity import Uniformity
from blutrain.device.geometry import MAX_STATIC_SHARED
from blutrain.errors import KernelError, message

_compiled: dict[Any, CompiledKernel] = {}

# What `@cuda.jit(fastmath=True)` allows on the CPU: as for Numba's own `@njit`, sums in another
# order (else a dot product within a thread is one long chain). Never nnan or ninf: CUDA's fastmath
# keeps them.
_FAST = frozenset({"contract", "nsz", "arcp", "afn", "reassoc"})
_CONTRACT = frozenset({"contract"})


def compile_kernel(
    kernel: Any,
    block: tuple[int, int, int],
    kinds: Sequence[types.Type],
    options: Options | None = None,
) -> CompiledKernel:
    """Compile a kernel for the CPU, or find it in memory or on disk.

    Args:
        kernel: a function decorated with `@cuda.jit`.
        block: threads of a block in x, y and z.
        kinds: Numba types of the arguments.
        options: how to compile; see `Options`.

    Returns:
        The compiled kernel.

    Raises:
        KernelError: the kernel holds something that cannot run on the CPU.
    """
    options = options or Options()
    key = (kernel, block, tuple(kinds), options)
    found = _compiled.get(key)
    if found is None:
        found = _compiled[key] = _compile(kernel, block, tuple(kinds), options, assume=True)
    return found


def _normalised(
    source: Source, block: tuple[int, int, int]
) -> tuple[Program, list[str], list[ast.stmt]]:
    """A kernel's statements; warps are kept apart where each is a row of the block by itself."""
    if block[0] == WARP:
        program = Program(block, warps_apart=True)
        parameters, body = normalise_kernel(source, program)
        if not program.shared and not meets_as_block(body):
            return program, parameters, body
    program = Program(block)
    return program, *normalise_kernel(source, program)


def _check_shared(where: str, program: Program) -> None:
    """Refuse more static shared memory than a GPU's assembler takes.

    Raises:
        KernelError: there is more.
    """
    n_bytes = sum(mem.nbytes for mem in program.shared.values())
    if n_bytes > MAX_STATIC_SHARED:
        wrong = f"shared arrays of constant shape may have {MAX_STATIC_SHARED} bytes together"
        do = "make them smaller, or take dynamic memory: cuda.shared.array(0, dtype)"
        raise KernelError(message(where, wrong, n_bytes, do))


def _compile(
    kernel: Any,
    block: tuple[int, int, int],
    kinds: tuple[types.Type, ...],
    options: Options,
    assume: bool,
) -> CompiledKernel:
    source = source_of(kernel)
    where = source.function.__name__
    if len(kinds) != len(source.parameters):
        takes = f"takes {len(source.parameters)} arguments ({', '.join(source.parameters)})"
        raise KernelError(message(f"kernel {where}", takes, len(kinds)))
    program, parameters, body = _normalised(source, block)
    if not getattr(kernel, "only_on_cpu", False):
        _check_shared(f"kernel {where}", program)
    uniform = Uniformity(body, parameters, program)
    builder = Builder(body, uniform, program, options.check_barriers)
    storage = place(builder, parameters, uniform, program)
    by_name = dict(zip(parameters, kinds, strict=True))
    facts = Facts(body, by_name, uniform, builder, program.objects, assume)
    emitter = Emitter(parameters, builder, storage, program, options, facts)
    text = emitter.kernel(kinds)
    objects = {"_nan": math.nan, "_inf": math.inf, **program.objects, **emitter.objects}
    flags = _FAST if getattr(kernel, "targetoptions", {}).get("fastmath") else _CONTRACT
    if options.reassociate:
        flags |= {"reassoc"}
    key = cache.key(text, objects, kinds, sorted(flags))
    code = cache.read(key)
    if code is None:
        # Arrays in local memory are what makes a kernel register-blocked.
        slp = bool(program.local)
        own = program.local.keys() - storage.carried_arrays | emitter.distribution.cells.keys()
        dynamic = {array for array, mem in program.shared.items() if mem.shape == (0,)}
        if len(dynamic) > 1:  # names of the same bytes
            own |= dynamic
        try:
            code = native.compile_text(text, objects, where, flags, slp, frozenset(own))
        except TypingError as error:
            origin = emitter.origin(getattr(error.node, "lineno", 0))
            (origin[0] if origin else source).fail_at(origin[1] if origin else 1, error.why)
        cache.write(key, code)

    def without_assumption() -> CompiledKernel:
        return _compile(kernel, block, kinds, options, assume=False)

    order = Order(program.has_global_atomics, program.has_grid_barriers)
    scratch_bytes, sites = emitter.scratch_bytes, emitter.checks.sites
    return CompiledKernel(where, text, code, order, scratch_bytes, sites, without_assumption)
