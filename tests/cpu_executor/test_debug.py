"""Debug mode finds every planted bug, in its line and with all who have part in it."""

import inspect

import numpy as np
import pytest
from cpu_executor.planted import BUGS

from blutrain.device import cpu
from blutrain.device.cpu.interpret import KernelFault

ORDERS = ("ascending", "reversed", 11)


def marked(kernel):
    """The lines that have part in a kernel's bug, its device functions' included."""
    module = inspect.getmodule(kernel.py_func)
    called = [getattr(module, n, None) for n in kernel.py_func.__code__.co_names]
    functions = [kernel.py_func, *(c.py_func for c in called if hasattr(c, "py_func"))]
    found = set()
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        found |= {first + k for k, text in enumerate(lines) if text.rstrip().endswith("# BUG")}
    return found


def run(case, kernel, order):
    arguments = case.arguments()
    cpu.run(kernel, case.grid, case.block, *arguments, shared=case.shared, debug=True, order=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name, order):
    case = BUGS[name]
    with pytest.raises(KernelFault) as caught:
        run(case, case.bug, order)
    fault = caught.value
    assert fault.kind == case.kind
    assert fault.array == case.array
    lines = marked(case.bug)
    assert lines
    assert fault.site.line in lines
    assert {s.line for s in fault.sites} <= lines
    text = str(fault)
    assert f"{fault.site.file}:{fault.site.line}" in text
    assert fault.site.text in text
    assert case.bug.py_func.__name__ in text
    if case.kind == "race":
        assert fault.places[0] != fault.places[1]
        assert text.count("of block") == 2


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", BUGS)
def test_without_the_bug_nothing_is_found(name, order):
    case = BUGS[name]
    run(case, case.right, order)


def test_there_are_twenty_bugs_at_least():
    assert len(BUGS) >= 20
    assert len({case.bug for case in BUGS.values()}) == len(BUGS)
    assert np.unique([case.kind for case in BUGS.values()]).size == 7
