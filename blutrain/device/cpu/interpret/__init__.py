"""Kernels run thread by thread in Python, with everybody told who wants to know.

A kernel's text is rewritten as a generator, one for each thread, that stops where threads meet:
barriers, shuffles, votes. Between two such places threads run one after another, in an order that
can be chosen. It is some ten thousand times slower than compiled code, and knows everything.

    class Stores(Observer):
        def access(self, site, kind, array, index, offset, place, value):
            if kind == "store":
                print(f"{site.file}:{site.line}", place.block, place.thread, array.name, index)

    interpret(kernel, grid, block, x, y, observers=[Stores()])

An observer overrides the methods of `Observer` that it wants: `begin`, `block_begin`, `block_end`,
`allocate`, `access`, `barrier`, `warp`, `fence`, `branch`. Of an access it is told before it
happens: the site (file, line, column, source text), the kind (load, store, atomic), the array
(`name`, `space`, `itemsize`, and `memory.address`, the base), the index as the kernel wrote it, the
offset in bytes and the place (linear block and thread). It may raise; the kernel then stops.

| file | does |
|---|---|
| `events.py`, `fault.py` | what observers are told; what is raised |
| `rewrite.py` | the kernel's text as a generator |
| `numbers.py`, `mathematics.py` | Numba's arithmetic in Python |
| `view.py` | arrays that tell |
| `thread.py`, `meetings.py`, `block.py` | a thread's `cuda`; exchanges; a block's threads |
| `machine.py`, `run.py` | a launch |

Example:
    >>> import numpy as np
    >>> from blutrain.device.cpu import examples
    >>> class Count(Observer):
    ...     stores = 0
    ...     def access(self, site, kind, array, index, offset, place, value):
    ...         self.stores += kind == "store"
    >>> x, y, count = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), Count()
    >>> interpret(examples.double, 1, 32, x, y, observers=[count])
    >>> y.tolist(), count.stores
    ([0.0, 2.0, 4.0, 6.0], 4)
"""

from blutrain.device.cpu.interpret.events import Launch, Observer, Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.machine import Order
from blutrain.device.cpu.interpret.run import Bfloat16, interpret

__all__ = ["Bfloat16", "KernelFault", "Launch", "Observer", "Order", "Place", "Site", "interpret"]
