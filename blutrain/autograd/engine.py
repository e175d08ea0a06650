"""The walk over the tape in reverse.

First every node that the roots reach is counted: how many gradients will arrive at it. Then the
node with the highest number among those that have all theirs is taken, its backward run, its
results passed on, and what it held is freed. Nothing recurses, so a chain may be of any length.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections.abc import Sequence
from typing import Any

from blutrain.autograd import tape
from blutrain.autograd.primitives import primitive
from blutrain.autograd.tape import Node
from blutrain.errors import AutogradError, ShapeError, message
from blutrain.tensor import Tensor, zeros


class _Arriving:
    """The sum of the gradients that have arrived at one place so far."""

    __slots__ = ("owned", "tensor")

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.owned = False

    def add(self, gradient: Tensor) -> None:
        if self.tensor is None:
            self.tensor = gradient
            return
        if not self.owned:
            # The first to arrive may be somebody else's memory too: sum into a copy.
            self.tensor = primitive("dense_copy")(self.tensor)
            self.owned = True
        primitive("accumulate")(self.tensor, gradient)


def run(
    roots: Sequence[tuple[Tensor, Tensor]],
    retain_graph: bool = False,
    wanted: Sequence[Tensor] | None = None,
) -> list[Tensor | None]:
    """Carry gradients from `roots` back over the tape.

    Args:
        roots: (tensor, its gradient) pairs.
        retain_graph: keep what backward needs, so that it can run again.
        wanted: return the gradients of these tensors and leave every `.grad` alone; with None
            gradients accumulate in the leaves' `.grad`.

    Returns:
        The gradients of `wanted`, None for one that the roots do not depend on.
    """
    walk = _Walk(retain_graph, wanted)
    outer, _running.walk = _running.walk, walk
    try:
        with tape.set_grad_enabled(False):
            walk.count([t for t, _ in roots])
            for t, gradient in roots:
                walk.deliver(tape._edge(t), gradient, counted=False)
            walk.start()
            while walk.ready:
                walk.step()
    finally:
        _running.walk = outer
    return walk.results()


def run_within(
    roots: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor]
) -> list[Tensor | None]:
    """Carry gradients back over a graph that a node's backward made, for the walk at that node.

    Leaves outside `leaves` (a module's parameters) get their gradients as the outer walk gives
    them: in `.grad`, or among the tensors that it was asked for.

    Returns:
        The gradients of `leaves`.
    """
    outer = _running.walk
    if outer is None or outer.wanted is None:
        run(roots)
        return [t.grad for t in leaves]
    asked = [t for t in outer.wanted if t.node is None]
    results = run(roots, wanted=[*leaves, *asked])
    for t, gradient in zip(asked, results[len(leaves) :], strict=True):
        if gradient is not None:
            outer.capture_leaf(t, gradient)
    return results[: len(leaves)]


class _Walk:
    def __init__(self, retain_graph: bool, wanted: Sequence[Tensor] | None) -> None:
        self.retain_graph = retain_graph
        self.pending: dict[Node, int] = {}
        self.pending_leaf: dict[int, int] = {}
        self.arrived: dict[Node, dict[int, _Arriving]] = {}
        self.arrived_leaf: dict[int, _Arriving] = {}
        self.ready: list[tuple[int, Node]] = []
        self.wanted = None if wanted is None else list(wanted)
        self.captured: dict[tuple[Node, int] | int, Tensor] = {}
        self.capturing: set[tuple[Node, int] | int] = set()
        for t in self.wanted or ():
            self.capturing.add(id(t) if t.node is None else (t.node, t.output_index))

    def count(self, roots: Sequence[Tensor]) -> None:
        """How many gradients will arrive at each node and leaf."""
        stack = []
        for t in roots:
            if t.node is not None and t.node not in self.pending:
                self.pending[t.node] = 0
                stack.append(t.node)
        while stack:
            node = stack.pop()
            if node.context is None:
                raise AutogradError(
                    message(
                        "backward",
                        f"the graph behind {node.name} was freed by an earlier backward",
                        do="pass retain_graph=True to the first one",
                    )
                )
            for edge in node.edges:
                if edge is None:
                    continue
                if isinstance(edge, Tensor):
                    self.pending_leaf[id(edge)] = self.pending_leaf.get(id(edge), 0) + 1
                    continue
                after = edge[0]
                if after in self.pending:
                    self.pending[after] += 1
                else:
                    self.pending[after] = 1
                    stack.append(after)

    def start(self) -> None:
        """The roots from which nothing else that is walked leads are ready at once."""
        for node, n in self.pending.items():
            if n == 0:
                heapq.heappush(self.ready, (-node.sequence, node))

    def deliver(self, edge: tape.Edge, gradient: Tensor | None, counted: bool = True) -> None:
        """Hand a gradient to where an edge leads."""
        if edge is None:
            return
        if isinstance(edge, Tensor):
            at = self.arrived_leaf.setdefault(id(edge), _Arriving())
            if gradient is not None:
                at.add(gradient)
            del gradient
            if counted:
                self.pending_leaf[id(edge)] -= 1
            if not self.pending_leaf.get(id(edge)):
                self._finish_leaf(edge, self.arrived_leaf.pop(id(edge)))
            return
        node, index = edge
        if gradient is not None:
            self.arrived.setdefault(node, {}).setdefault(index, _Arriving()).add(gradient)
        if counted:
            self.pending[node] -= 1
            if not self.pending[node]:
                heapq.heappush(self.ready, (-node.sequence, node))

    def step(self) -> None:
        """Run one node's backward."""
        _, node = heapq.heappop(self.ready)
        here = self.arrived.pop(node, {})
        gradients: list[Tensor | None] = []
        for index, (shape, dtype) in enumerate(node.outputs):
            at = here.pop(index, None)
            gradient = None if at is None else at.tensor
            del at
            if gradient is not None and node.hooks and index in node.hooks:
                gradient = _run_hooks(node.hooks[index], gradient)
            if gradient is not None and (node, index) in self.capturing:
                self.captured[node, index] = gradient
            if gradient is None and len(node.outputs) > 1 and here:
                gradient = zeros(shape, dtype)
            gradients.append(gradient)
        results: Sequence[Tensor | None]
        if all(g is None for g in gradients):
            results = (None,) * len(node.edges)
        else:
            results = self._backward(node, gradients)
        del gradients
        edges = node.edges
        if not self.retain_graph:
            node.release()
        left = list(results)
        del results
        for edge in reversed(edges):
            # Each result is handed over, not lent: a leaf may then keep its memory.
            self.deliver(edge, left.pop())

    def _backward(self, node: Node, gradients: list[Tensor | None]) -> Sequence[Tensor | None]:
        for index, (g, (shape, dtype)) in enumerate(zip(gradients, node.outputs)):
            if g is None:
                gradients[index] = zeros(shape, dtype)
        returned: Any = node.backward(node.context, *gradients)
        results: tuple[Tensor | None, ...]
        results = returned if isinstance(returned, tuple) else (returned,)
        if len(results) != len(node.edges):
            raise AutogradError(
                message(
                    node.name,
                    f"backward must return {len(node.edges)} gradients, one a tensor input",
                    len(results),
                )
            )
        if node.where is not None:
            for g in results:
                if g is not None and not primitive("all_finite")(g):
                    raise AutogradError(
                        message(
                            node.name,
                            "its backward gave a gradient that is not finite",
                            do=f"the forward call was {node.where}",
                        )
                    )
        return results

    def _finish_leaf(self, leaf: Tensor, at: _Arriving) -> None:
        gradient, owned = at.tensor, at.owned
        at.tensor = None
        if gradient is None:
            return
        if gradient.shape != leaf.shape or gradient.dtype is not leaf.dtype:
            raise AutogradError(
                message(
                    "backward",
                    f"the gradient of a {leaf.shape} {leaf.dtype} tensor must be the same",
                    f"{gradient.shape} {gradient.dtype}",
                )
            )
        if leaf._hooks:
            gradient = _run_hooks(list(leaf._hooks.values()), gradient)
            owned = False
        if self.wanted is not None:
            if id(leaf) in self.capturing:
                self.capture_leaf(leaf, gradient)
            return
        if leaf.grad is None:
            # Keep the memory where nothing else refers to it: the tensor by this frame (and the
            # call's argument) and the storage by the tensor (and the call's argument) alone.
            fresh = owned or (
                sys.getrefcount(gradient) <= 2
                and sys.getrefcount(gradient.storage) <= 2
                and gradient.storage.n_bytes == gradient.n_bytes
            )
            keep = fresh and gradient.is_contiguous
            leaf.grad = gradient if keep else primitive("dense_copy")(gradient)
        else:
            primitive("accumulate")(leaf.grad, gradient)

    def capture_leaf(self, leaf: Tensor, gradient: Tensor) -> None:
        """Add to the gradient that is returned for a leaf."""
        before = self.captured.get(id(leaf))
        if before is not None:
            gradient = primitive("dense_copy")(gradient)
            primitive("accumulate")(gradient, before)
        self.captured[id(leaf)] = gradient

    def results(self) -> list[Tensor | None]:
        """The captured gradients, in the order of `wanted`."""
        return [
            self.captured.get(id(t) if t.node is None else (t.node, t.output_index))
            for t in self.wanted or ()
        ]


class _Running(threading.local):
    """Per thread: the walk that is under way."""

    walk: _Walk | None = None


_running = _Running()


def _run_hooks(hooks: Sequence[object], gradient: Tensor) -> Tensor:
    for hook in hooks:
        changed = hook(gradient)  # type: ignore[operator]
        if changed is not None:
            gradient = changed
    return gradient


def backward(tensor: Tensor, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
    """Accumulate the gradients of everything that `tensor` came from into the leaves' `.grad`.

    Args:
        tensor: the result to differentiate; a scalar where `gradient` is None.
        gradient: the gradient of some scalar with respect to `tensor`, of its shape and dtype.
        retain_graph: keep the saved tensors so that backward can run again.

    Raises:
        AutogradError: nothing was recorded, or the graph was already freed.
        ShapeError: a gradient is needed, or has the wrong shape.
    """
    run([(tensor, _root_gradient("backward", tensor, gradient))], retain_graph)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`; no `.grad` is touched.

    Args:
        outputs: what to differentiate.
        inputs: leaves or intermediate tensors.
        grad_outputs: a gradient for each output; ones for a scalar.
        retain_graph: keep the saved tensors so that the graph can be walked again.
        allow_unused: give None for an input that the outputs do not depend on.

    Raises:
        AutogradError: an input is unused and `allow_unused` is False.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([1.0, 2.0], requires_grad=True)
        >>> bt.grad((x * x).sum(), x)[0].tolist()
        [2.0, 4.0]
    """
    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    ins = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given: list[Tensor | None]
    if grad_outputs is None:
        given = [None] * len(outs)
    else:
        given = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    if len(given) != len(outs):
        raise ShapeError(message("grad", f"grad_outputs must hold {len(outs)}", len(given)))
    for k, t in enumerate(ins):
        if not t.requires_grad:
            raise AutogradError(message("grad", f"input {k} must require a gradient", t.shape))
    roots = [(t, _root_gradient("grad", t, g)) for t, g in zip(outs, given)]
    results = run(roots, retain_graph, ins)
    for k, g in enumerate(results):
        if g is None and not allow_unused:
            do = "pass allow_unused=True to get None"
            raise AutogradError(message("grad", f"outputs must depend on input {k}", do=do))
    return tuple(results)


def _root_gradient(where: str, tensor: Tensor, gradient: Tensor | None) -> Tensor:
    if not tensor.requires_grad:
        raise AutogradError(
            message(
                where,
                "the tensor must come from one that requires a gradient",
                do="create it with requires_grad=True, outside no_grad()",
            )
        )
    if gradient is None:
        if tensor.size != 1:
            raise ShapeError(
                message(where, "without a gradient the tensor must be a scalar", tensor.shape)
            )
        result: Tensor = primitive("ones")(tensor.shape, tensor.dtype)
        return result
    if gradient.shape != tensor.shape or gradient.dtype is not tensor.dtype:
        raise ShapeError(
            message(
                where,
                f"gradient must be {tensor.shape} {tensor.dtype}",
                f"{gradient.shape} {gradient.dtype}",
            )
        )
    return gradient
