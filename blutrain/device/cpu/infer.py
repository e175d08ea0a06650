"""Types of variables, by Numba's own type inference over the program of one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numba import types
from numba.core import compiler, errors, typed_passes
from numba.core.registry import cpu_target

from blutrain.device.cpu.source import Source


def variable_types(
    text: str, objects: Mapping[str, object], kinds: Sequence[types.Type], source: Source
) -> dict[str, types.Type]:
    """The Numba type of every variable of the probe.

    Args:
        text: source of the probe.
        objects: what its free names mean.
        kinds: types of the kernel's parameters; thread and block positions are int64.
        source: the kernel, for error messages.
    """
    namespace = dict(objects)
    exec(compile(text, "<probe>", "exec"), namespace)
    function: Any = namespace["probe"]
    function_ir = compiler.run_frontend(function)
    typing_context, target = cpu_target.typing_context, cpu_target.target_context
    typing_context.refresh()
    target.refresh()
    n_places = function.__code__.co_argcount - len(kinds)
    arguments = (types.int64,) * n_places + tuple(kinds)
    try:
        result = typed_passes.type_inference_stage(
            typing_context, target, function_ir, arguments, None
        )
    except errors.NumbaError as error:
        source.fail(None, f"cannot be compiled for the CPU: {error}")
    found: dict[str, list[types.Type]] = {}
    for version, kind in result.typemap.items():
        if not version.startswith(("$", "arg.")):
            # Numba splits a variable into versions v, v.1, v.2; they share one array.
            found.setdefault(version.split(".")[0], []).append(types.unliteral(kind))
    return {
        v: kinds_[0] if len(set(kinds_)) == 1 else typing_context.unify_types(*kinds_)
        for v, kinds_ in found.items()
    }
