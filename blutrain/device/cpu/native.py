"""From the program's text to machine code: parse, type, lower to LLVM, optimise, once.

Numba's own way from Python to LLVM (bytecode, its IR, SSA, rewrites) takes most of a second for a
kernel with a few barriers, mostly in Python; this takes a tenth of that. What is used of Numba is
what is hard: its rules for types, its implementations of operators and functions, its code loader.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import callconv, compiler_lock, errors
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from blutrain.device.cpu import webs
from blutrain.device.cpu.kinds import Kinds
from blutrain.device.cpu.lower import Lowering
from blutrain.errors import KernelError, message

# The entry's arguments: first and last block, grid in x, y and z, shared bytes, addresses of
# scratch memory and of the slots.
ENTRY = (types.int64,) * 8
_numbers = itertools.count()


class _Library(JITCodeLibrary):
    """A code library that is optimised once.

    Attributes:
        slp: whether straight-line code is vectorised too. It makes register-blocked kernels several
            times faster. It is not for all, for it can make code that LLVM's verifier refuses.
    """

    slp = False

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.slp_vectorization = self.slp
        options.loop_interleaving = True
        # Unrolling of LLVM's own choice doubles the time to compile and makes nothing faster; loops
        # marked for it (see hints.py) are unrolled all the same.
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


@functools.cache
def _context() -> Any:
    """Numba's CPU target, with CUDA's rules for division by zero."""
    # LLVM 22 estimates twice what a vectorised loop costs, and an assertion ends the process where
    # the two choose differently (github.com/llvm/llvm-project/issues/182646). They do for loops
    # that it knows to be tiny; this has it take these for loops like any other.
    llvm.set_option("blutrain", "-vectorizer-min-trip-count=0")
    base = cpu_target.target_context
    return base.subtarget(error_model=callconv.create_error_model("numpy", base), enable_nrt=True)


def compile_text(
    text: str,
    objects: Mapping[str, object],
    where: str,
    fastmath: frozenset[str],
    slp: bool = False,
    own: frozenset[str] = frozenset(),
) -> tuple[str, bytes]:
    """Compile a program.

    Args:
        text: source with one function named `kernel`.
        objects: what its free names mean.
        where: the kernel's name, for error messages.
        fastmath: LLVM's fast-math flags.
        slp: whether to vectorise straight-line code.
        own: names of arrays that threads use one after another (see `hints.py`).

    Returns:
        The entry's symbol and an ELF object.

    Raises:
        TypingError: an expression has no type; its node has the line in the text.
        KernelError: Numba cannot do what is asked.
    """
    definition = ast.parse(text).body[0]
    assert isinstance(definition, ast.FunctionDef)
    symbol = f"blutrain.{where}.{next(_numbers)}"
    with compiler_lock.global_compiler_lock:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        try:
            library = _lowered(definition, objects, symbol, fastmath, own)
            library.slp = slp
            library.finalize()
        except RuntimeError:  # the verifier refused what LLVM's optimiser made
            if not slp:
                raise
            return compile_text(text, objects, where, fastmath, own=own)
        except (errors.NumbaError, NotImplementedError) as error:
            wrong = f"cannot be compiled for the CPU: {error}"
            raise KernelError(message(f"kernel {where}", wrong)) from error
        return symbol, library._get_compiled_object()


def _lowered(
    definition: ast.FunctionDef,
    objects: Mapping[str, object],
    symbol: str,
    fastmath: frozenset[str],
    own: frozenset[str],
) -> Any:
    """A code library with the program's LLVM code, not yet optimised."""
    context = _context()
    library = _Library(context.codegen(), symbol)
    library.enable_object_caching()
    ast.fix_missing_locations(webs.Plain().visit(definition))
    webs.split(definition.body)
    kinds = Kinds(definition.body, objects, [a.arg for a in definition.args.args])
    module = library.create_ir_module(symbol)
    signature = context.call_conv.get_function_type(types.none, ENTRY)
    function = ir.Function(module, signature, symbol)
    # Its two first parameters are Numba's: where a result and an exception would go.
    names = [a.arg for a in definition.args.args]
    given = dict(zip(names, function.args[2:], strict=True))
    with context.push_code_library(library):
        Lowering(definition, kinds, context, function, given, sorted(fastmath), own)
        library.add_ir_module(module)
    return library


def load(symbol: str, code: bytes, where: str) -> tuple[int, Any]:
    """The address of a compiled entry, and what must stay alive for it."""
    target = cpu_target.target_context
    target.refresh()
    codegen = target.codegen()
    with compiler_lock.global_compiler_lock:
        library = codegen.create_library(f"blutrain.{where}")
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        return codegen._engine.get_function_address(symbol), library
