"""From the program's text to machine code: Numba's front end, then LLVM's optimiser, once.

Numba would optimise every function twice and wrap it for calls from Python; a kernel is called
through ctypes only, so neither is done here. What remains of Numba is its type inference and its
lowering to LLVM.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core import (
    compiler,
    compiler_lock,
    errors,
    funcdesc,
    lowering,
    typed_passes,
    untyped_passes,
)  # fmt: skip
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.cpu_options import FastMathOptions
from numba.core.registry import cpu_target

from blutrain.errors import KernelError, message

# The entry's arguments: first and last block, grid in x, y and z, shared bytes, address of slots.
ENTRY = (types.int64,) * 7


class _Library(JITCodeLibrary):
    """A code library that is optimised once, with SLP vectorisation."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.slp_vectorization = True
        options.loop_interleaving = True
        options.loop_unrolling = True
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(LoweringPass):
    """Numba's lowering, without the wrappers that make a function callable from Python."""

    _name = "blutrain_lowering"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Lower to LLVM; the result of the compilation is the symbol's name."""
        descriptor = funcdesc.PythonFunctionDescriptor.from_specialized_function(
            state.func_ir, state.typemap, state.return_type, state.calltypes,
            mangler=state.targetctx.mangler, inline=False, noalias=False, abi_tags=(),
        )  # fmt: skip
        with state.targetctx.push_code_library(state.library):
            lowering.Lower(
                state.targetctx, state.library, descriptor, state.func_ir, metadata=state.metadata
            ).lower()
        state.cr = descriptor.mangled_name
        return True


class _Pipeline(compiler.CompilerBase):
    """Only those of Numba's passes that a kernel needs: it has no closures, generators, `with`."""

    def define_pipelines(self) -> list[Any]:
        """The passes, in order."""
        passes = PassManager("blutrain")
        for kind, says in (
            (untyped_passes.TranslateByteCode, "read the bytecode"),
            (untyped_passes.FixupArgs, "number the arguments"),
            (untyped_passes.IRProcessing, "process Numba's IR"),
            (untyped_passes.GenericRewrites, "constant indices and raise"),
            (untyped_passes.RewriteDynamicRaises, "raise with arguments"),
            (untyped_passes.ReconstructSSA, "one version a definition"),
            (typed_passes.NopythonTypeInference, "infer types"),
            (typed_passes.PreLowerStripPhis, "remove phi nodes"),
            (typed_passes.InlineOverloads, "inline overloads that ask for it"),
            (typed_passes.NopythonRewrites, "typed rewrites"),
            (typed_passes.IRLegalization, "check"),
            (_Lowering, "lower to LLVM"),
        ):
            passes.add_pass(kind, says)
        passes.finalize()
        return [passes]


def compile_text(
    text: str, objects: Mapping[str, object], where: str, fastmath: frozenset[str]
) -> tuple[str, bytes]:
    """Compile a program.

    Args:
        text: source with one function named `kernel`.
        objects: what its free names mean.
        where: the kernel's name, for error messages.
        fastmath: LLVM's fast-math flags.

    Returns:
        The entry's symbol and an ELF object.
    """
    filename = f"<cpu program of {where}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace = dict(objects)
    exec(compile(text, filename, "exec"), namespace)
    function: Any = namespace["kernel"]
    flags = compiler.Flags()
    flags.enable_ssa = True
    flags.nrt = True
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.fastmath = FastMathOptions(set(fastmath))
    target = cpu_target.target_context
    library = _Library(target.codegen(), f"blutrain.{where}")
    library.enable_object_caching()
    with compiler_lock.global_compiler_lock:
        try:
            symbol = compiler.compile_extra(
                cpu_target.typing_context, target, function, ENTRY, types.none, flags, {},
                library=library, pipeline_class=_Pipeline,
            )  # fmt: skip
            library.finalize()
        except errors.NumbaError as error:
            raise KernelError(
                message(f"kernel {where}", f"cannot be compiled for the CPU: {error}")
            ) from error
        return symbol, library._get_compiled_object()


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
