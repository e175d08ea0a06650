"""The tape: which operation made a tensor, and what its backward needs.

Every recorded operation is a `Node`. A node knows where the gradients of its inputs go (`edges`:
another node's output, or a leaf tensor), and a `Context` holds what the forward pass saved. Nodes
are numbered as they are made, so a node's inputs always have smaller numbers: walking the numbers
downwards is walking the tape in reverse. The walk itself is in `engine.py`.
"""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blutrain.errors import AutogradError, message
from blutrain.tensor import Tensor

# Where a gradient goes: nowhere, to output `index` of a node, or into a leaf's `.grad`.
Edge = tuple["Node", int] | Tensor | None
Backward = Callable[..., Any]


class _Mode(threading.local):
    """Per thread: whether operations are recorded, and whether their lines are remembered."""

    recording = True
    anomaly = False


mode = _Mode()
_sequence = itertools.count()


def is_grad_enabled() -> bool:
    """Whether operations are being recorded."""
    return mode.recording


@contextmanager
def set_grad_enabled(enabled: bool) -> Iterator[None]:
    """Record operations, or not, within a block."""
    before = mode.recording
    mode.recording = enabled
    try:
        yield
    finally:
        mode.recording = before


def no_grad() -> Any:
    """Do not record operations within a block: `with bt.no_grad(): ...`, or as a decorator."""
    return set_grad_enabled(False)


def enable_grad() -> Any:
    """Record operations within a block, also inside `no_grad`."""
    return set_grad_enabled(True)


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Remember each operation's line; a backward that yields inf or nan names it and stops.

    Costs a stack walk an operation and a read-back a gradient: for finding a fault only.
    """
    before = mode.anomaly
    mode.anomaly = True
    try:
        yield
    finally:
        mode.anomaly = before


class Context:
    """What an operation's forward leaves for its backward.

    Attributes:
        needs: for each tensor input, whether its gradient is wanted.
    """

    if TYPE_CHECKING:
        # An operation may keep plain values under names of its own: `ctx.eps = eps`.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs = needs
        self._saved: tuple[Tensor | None, ...] | None = ()
        self._versions: tuple[int, ...] = ()

    def save(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward pass, which gets them as `saved` in this order."""
        self._saved = tensors
        self._versions = tuple([0 if t is None else t.storage.version for t in tensors])

    @property
    def saved(self) -> Any:
        """The kept tensors.

        Raises:
            AutogradError: one was overwritten since, or they are gone (a second backward).
        """
        if self._saved is None:
            raise AutogradError(
                message(
                    "backward",
                    "the saved tensors were freed by an earlier backward",
                    do="pass retain_graph=True to the first one",
                )
            )
        for k, (t, version) in enumerate(zip(self._saved, self._versions)):
            if t is not None and t.storage.version != version:
                raise AutogradError(
                    message(
                        "backward",
                        f"saved tensor {k} of shape {t.shape} must be as the forward left it",
                        f"version {t.storage.version} where {version} was saved",
                        "do not write in place to what a later backward needs; clone() it",
                    )
                )
        return self._saved

    def _untie_outputs(self, outputs: Sequence[Tensor]) -> None:
        # An output that is saved would keep itself alive: output → node → context → output.
        if self._saved:
            self._saved = tuple(
                [t.detach() if any(t is o for o in outputs) else t for t in self._saved]  # type: ignore[union-attr]
            )

    def release(self) -> None:
        """Forget the saved tensors, so that their memory can be used again."""
        self._saved = None
        self._versions = ()


class Node:
    """One recorded operation.

    Attributes:
        name: the op's name.
        backward: (context, *output gradients) → the inputs' gradients.
        context: what the forward saved; None once the node was used up.
        edges: for each tensor input, where its gradient goes.
        outputs: (shape, dtype) of each output, for gradients that never arrive.
        sequence: the node's place on the tape.
        hooks: output index → the hooks of that output.
        where: the line of the forward call, in anomaly mode.
        view_version: for a view: the storage's version when it was taken; else -1.
    """

    __slots__ = (
        "backward", "context", "edges", "hooks", "name", "outputs", "sequence", "view_version",
        "where",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        backward: Backward,
        context: Context,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> None:
        self.name = name
        self.backward = backward
        self.context: Context | None = context
        self.edges: tuple[Edge, ...] = tuple([_edge(t) for t in inputs])
        self.outputs = tuple([(o.shape, o.dtype) for o in outputs])
        self.sequence = next(_sequence)
        self.hooks: dict[int, list[Callable[[Tensor], Tensor | None]]] | None = None
        self.where: str | None = _calling_line() if mode.anomaly else None
        self.view_version = -1

    def release(self) -> None:
        """Drop what the backward pass needed; the node cannot be used again."""
        if self.context is not None:
            self.context.release()
        self.context = None
        self.edges = ()


def _edge(t: Tensor | None) -> Edge:
    if t is None or not t.requires_grad:
        return None
    if t.node is None:
        return t
    return t.node, t.output_index


def _calling_line() -> str:
    """The innermost line outside blutrain's own machinery."""
    for frame in reversed(traceback.extract_stack()):
        parts = frame.filename.replace("\\", "/")
        if "/blutrain/autograd/" in parts or "/blutrain/cuda_kernels/" in parts:
            continue
        if parts.endswith(("/blutrain/ops.py", "/blutrain/tensor.py")):
            continue
        return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return "unknown"


def check_view(name: str, t: Tensor) -> None:
    """Refuse a recorded view whose base was written in place after the view was taken."""
    node = t.node
    if node is not None and node.view_version >= 0 and node.view_version != t.storage.version:
        raise AutogradError(
            message(
                name,
                f"the view of shape {t.shape} must be of memory as it was when it was taken",
                do="take the view again after the in-place write",
            )
        )


def record(
    name: str,
    forward: Callable[..., Any],
    backward: Backward,
    inputs: Sequence[Tensor | None],
    arguments: Sequence[Any],
    params: dict[str, Any],
) -> Any:
    """Run an operation and put it on the tape where an input wants a gradient.

    Args:
        name: for messages.
        forward: (context, *arguments, **params) → a tensor or a tuple of tensors.
        backward: (context, *output gradients) → a gradient (or None) for each of `inputs`.
        inputs: the tensor inputs, in the order of backward's results.
        arguments: what forward takes positionally.
        params: what forward takes by name.
    """
    recording = mode.recording
    needs = tuple([t is not None and t.requires_grad for t in inputs])
    wanted = recording and True in needs
    context = Context(needs if wanted else (False,) * len(needs))
    if wanted:
        for t in inputs:
            if t is not None:
                check_view(name, t)
    mode.recording = False
    try:
        result = forward(context, *arguments, **params)
    finally:
        mode.recording = recording
    if wanted:
        attach(Node(name, backward, context, inputs, _outputs(result)), _outputs(result))
    return result


def attach(node: Node, outputs: Sequence[Tensor]) -> None:
    """Make `node` the origin of `outputs` (those with floating dtypes)."""
    if node.context is not None:
        node.context._untie_outputs(outputs)
    for k, o in enumerate(outputs):
        if o.dtype.is_floating:
            o.requires_grad = True
            o.node = node
            o.output_index = k


def _outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
