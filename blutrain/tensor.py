"""Tensors: a shape, strides and an offset over a storage on the device.

This module knows storage and views only. Arithmetic, reductions and everything else that
launches a kernel is attached by `blutrain.ops`; what a view means for gradients is told to the
tape through `Tensor._view_hook`, which `blutrain.autograd` sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np

from blutrain import dtypes, memory
from blutrain.device import TARGET, transfer
from blutrain.device.array import Array, numba_array
from blutrain.dtypes import DType, as_dtype
from blutrain.errors import DeviceError, DTypeError, ShapeError, message

Shape = tuple[int, ...]


class Storage:
    """A block of device memory, given back to the allocator when nothing refers to it.

    Attributes:
        pointer: the device address of the first byte.
        n_bytes: how many bytes were asked for.
        version: how often the memory was written in place; the tape compares it.
        owner: for memory that is not ours: the object that keeps it alive.
    """

    __slots__ = ("_block", "_free", "n_bytes", "owner", "pointer", "version")

    def __init__(self, n_bytes: int) -> None:
        self._block: memory.Block | None = memory.malloc(n_bytes)
        self._free = memory.free
        self.pointer = self._block.pointer
        self.n_bytes = n_bytes
        self.version = 0
        self.owner: object = None

    @classmethod
    def borrowed(cls, pointer: int, n_bytes: int, owner: object) -> Storage:
        """A storage over memory that belongs to `owner`."""
        self = cls.__new__(cls)
        self._block = None
        self.pointer, self.n_bytes, self.version, self.owner = pointer, n_bytes, 0, owner
        return self

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:
            self._block = None
            self._free(block)


def dense_strides(shape: Sequence[int]) -> Shape:
    """Row-major strides, in elements.

    Example:
        >>> dense_strides((2, 3, 4))
        (12, 4, 1)
    """
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * max(shape[k + 1], 1)
    return tuple(strides)


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie row-major without gaps (extents of 1 do not matter)."""
    if 0 in shape:
        return True
    step = 1
    for k in range(len(shape) - 1, -1, -1):
        extent = shape[k]
        if extent != 1:
            if strides[k] != step:
                return False
            step *= extent
    return True


class Tensor:
    """A view of a storage with a place on the tape.

    Attributes:
        storage: the memory.
        shape: extents.
        strides: steps in elements, one a dimension.
        offset: the first element's place in the storage, in elements.
        dtype: element type.
        requires_grad: whether gradients flow to (a leaf) or through this tensor.
        grad: the accumulated gradient of a leaf, or None.
        node: the tape's node that made this tensor, or None for a leaf.
        output_index: which output of that node it is.
        is_contiguous: whether the elements lie row-major without gaps.
        is_view: whether it was taken from another tensor, whose memory it shares.
    """

    __slots__ = (
        "__weakref__", "_hooks", "dtype", "grad", "is_contiguous", "is_view", "node", "offset",
        "output_index", "requires_grad", "shape", "size", "storage", "strides",
    )  # fmt: skip

    if TYPE_CHECKING:
        # What blutrain.ops attaches, for type checkers and editors; the functions have the text.
        def _method(self, *args: Any, **params: Any) -> Tensor: ...

        abs = add = clamp = clone = contiguous = cos = div = eq = erf = exp = ge = gelu = _method
        gt = le = log = log_softmax = lt = matmul = max = maximum = mean = min = _method
        minimum = mul = ne = neg = pow = relu = requires_grad_ = reshape = rsqrt = _method
        sigmoid = silu = sin = softmax = sqrt = sub = sum = tanh = to = var = _method
        add_ = copy_ = div_ = fill_ = mul_ = sub_ = zero_ = _method

        def split(self, sizes: Any, axis: int = 0) -> tuple[Tensor, ...]: ...  # noqa: D102
        def backward(self, gradient: Tensor | None = None, retain_graph: bool = False) -> None: ...  # noqa: D102
        def register_hook(self, hook: Any) -> Any: ...  # noqa: D102
        def retain_grad(self) -> None: ...  # noqa: D102
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any: ...
        def __dlpack__(self, *, stream: Any = None, **unused: Any) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __neg__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def _binary(self, other: Any) -> Tensor: ...

        __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _binary
        __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _binary
        __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __eq__ = __ne__ = _binary  # type: ignore[assignment]

    # Set by blutrain.autograd: (base, view, how to carry a gradient back) is told to the tape.
    _view_hook: ClassVar[Callable[..., Tensor] | None] = None
    # NumPy must not take over `array + tensor`: ours is asked instead.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(
        self,
        storage: Storage,
        shape: Shape,
        strides: Shape | None,
        offset: int,
        dtype: DType,
        requires_grad: bool = False,
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.size = math.prod(shape)
        if strides is None:
            self.strides = dense_strides(shape)
            self.is_contiguous = True
        else:
            self.strides = strides
            self.is_contiguous = is_dense(shape, strides)
        self.offset = offset
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None
        self.node: Any = None
        self.output_index = 0
        self._hooks: dict[int, Callable[[Tensor], Tensor | None]] | None = None
        self.is_view = False

    # ------------------------------------------------------------------ facts
    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self.node is None

    @property
    def n_bytes(self) -> int:
        """Bytes of the elements (not of the whole storage)."""
        return self.size * self.dtype.itemsize

    @property
    def pointer(self) -> int:
        """The device address of the first element."""
        return self.storage.pointer + self.offset * self.dtype.itemsize

    @property
    def version(self) -> int:
        """How often the storage was written in place."""
        return self.storage.version

    @property
    def device(self) -> str:
        """The target that holds the memory: "cuda" or "cpu"."""
        return TARGET

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError(message("len", "tensor must have a dimension", self.shape))
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise DTypeError(message("index", "tensor must hold an integer", self.dtype))
        return int(self.item())

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    # ------------------------------------------------------- to kernels and out
    def array(self, *shape: int) -> Array:
        """What a launch takes: this tensor as it is, or, contiguous, seen with another shape.

        Args:
            shape: extents with the same number of elements; none for the tensor's own.

        Raises:
            ShapeError: a shape was given and the tensor is not contiguous.
        """
        itemsize = self.dtype.itemsize
        pointer = self.storage.pointer + self.offset * itemsize
        if shape:
            if not self.is_contiguous:
                raise ShapeError(
                    message(
                        "array", "tensor must be contiguous", self.strides, "pass dense(tensor)"
                    )
                )
            if len(shape) == 1:
                return Array(pointer, shape, (itemsize,), self.dtype, "C", self)
            strides = dense_strides(shape)
            layout = "C"
        else:
            shape, strides = self.shape, self.strides
            layout = "C" if self.is_contiguous else "A"
        if len(shape) == 1:
            return Array(pointer, shape, (strides[0] * itemsize,), self.dtype, layout, self)
        return Array(
            pointer, shape, tuple([s * itemsize for s in strides]), self.dtype, layout, self
        )

    @property
    def device_array(self) -> Any:
        """This tensor as an array for kernels of one's own: Numba's on cuda, NumPy's on cpu."""
        if TARGET == "cpu":
            return self.host()
        return numba_array(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if TARGET != "cuda":
            raise AttributeError("__cuda_array_interface__: the tensor is in host memory")
        if self.dtype is dtypes.bfloat16:
            raise AttributeError("__cuda_array_interface__: has no bfloat16; use DLPack")
        itemsize = self.dtype.itemsize
        return {
            "shape": self.shape,
            "typestr": self.dtype.storage.str,
            "data": (self.pointer if self.size else 0, False),
            "strides": None if self.is_contiguous else tuple(s * itemsize for s in self.strides),
            "version": 3,
            "stream": 1,
        }

    def host(self) -> np.ndarray[Any, Any]:
        """On the cpu target: a NumPy array over the very memory (bfloat16 as its bits).

        Raises:
            DeviceError: the memory is the GPU's; `numpy()` copies it.
        """
        if TARGET != "cpu":
            raise DeviceError(message("host", "memory must be the host's", TARGET, "use .numpy()"))
        itemsize = self.dtype.itemsize
        strides = tuple([s * itemsize for s in self.strides])
        return transfer.host_view(self.pointer, self.shape, strides, self.dtype.storage)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy copy; bfloat16 comes back as float32.

        Raises:
            AutogradError: the tensor requires a gradient; detach it first.
        """
        if self.requires_grad:
            from blutrain.errors import AutogradError

            raise AutogradError(
                message("numpy", "tensor must not require a gradient", do="call .detach().numpy()")
            )
        if TARGET == "cpu":
            return dtypes.from_storage(self.host().copy(), self.dtype)
        base, shape, strides = self._covering_span()
        host = np.empty(base[1], self.dtype.storage)
        if host.size:
            transfer.copy_to_host(host, self.storage.pointer + base[0] * self.dtype.itemsize)
        byte_strides = tuple(s * self.dtype.itemsize for s in strides)
        first = self.offset - base[0]
        view = np.ndarray(
            shape, self.dtype.storage, host, first * self.dtype.itemsize, byte_strides
        )
        return dtypes.from_storage(view.copy(), self.dtype)

    def _covering_span(self) -> tuple[tuple[int, int], Shape, Shape]:
        """((first element, count) of the storage that covers this view, shape, strides)."""
        if not self.size:
            return (self.offset, 0), self.shape, self.strides
        low = self.offset + sum(min(0, s * (n - 1)) for s, n in zip(self.strides, self.shape))
        high = self.offset + sum(max(0, s * (n - 1)) for s, n in zip(self.strides, self.shape))
        return (low, high - low + 1), self.shape, self.strides

    def item(self) -> Any:
        """The only element as a Python scalar.

        Raises:
            ShapeError: there is not exactly one element.
        """
        if self.size != 1:
            raise ShapeError(message("item", "tensor must have one element", self.shape))
        host = np.empty(1, self.dtype.storage)
        transfer.copy_to_host(host, self.pointer)
        return dtypes.from_storage(host, self.dtype)[0].item()

    def tolist(self) -> Any:
        """The elements as nested Python lists."""
        return self.detach().numpy().tolist()

    # ------------------------------------------------------------------ views
    def _view(self, shape: Shape, strides: Shape | None, offset: int, back: Any) -> Tensor:
        out = Tensor(self.storage, shape, strides, offset, self.dtype)
        return out if Tensor._view_hook is None else Tensor._view_hook(self, out, back)

    def detach(self) -> Tensor:
        """The same memory without a place on the tape."""
        return Tensor(self.storage, self.shape, self.strides, self.offset, self.dtype)

    def as_shape(self, shape: Shape) -> Tensor | None:
        """A view with another shape, or None where only a copy could have it."""
        if self.is_contiguous:
            return self._view(shape, None, self.offset, ("reshape", self.shape))
        strides = reshaped_strides(self.shape, self.strides, shape)
        if strides is None:
            return None
        return self._view(shape, strides, self.offset, ("reshape", self.shape))

    def view(self, *shape: Any) -> Tensor:
        """A view with another shape; one extent may be -1.

        Raises:
            ShapeError: the elements do not fit, or only a copy could have that shape.
        """
        new = resolve_shape("view", shape, self.size)
        out = self.as_shape(new)
        if out is None:
            got = f"shape {self.shape} with strides {self.strides}"
            raise ShapeError(message("view", f"{new} would need a copy", got, "use reshape"))
        return out

    def permute(self, *axes: Any) -> Tensor:
        """Dimensions in another order.

        Raises:
            ShapeError: `axes` is not a permutation.

        Example:
            >>> import blutrain as bt
            >>> bt.zeros((2, 3, 4)).permute(2, 0, 1).shape
            (4, 2, 3)
        """
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = tuple(_axis("permute", a, self.ndim) for a in order)
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(message("permute", f"axes must order {self.ndim} dimensions", axes))
        inverse = tuple(int(i) for i in np.argsort(order)) if order else ()
        return self._view(
            tuple(self.shape[a] for a in order),
            tuple(self.strides[a] for a in order),
            self.offset,
            ("permute", inverse),
        )

    def transpose(self, axis0: int = -2, axis1: int = -1) -> Tensor:
        """Two dimensions swapped."""
        a, b = _axis("transpose", axis0, self.ndim), _axis("transpose", axis1, self.ndim)
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    @property
    def T(self) -> Tensor:
        """All dimensions reversed."""
        return self.permute(*range(self.ndim - 1, -1, -1))

    def expand(self, *shape: Any) -> Tensor:
        """Extents of 1 repeated (and new leading dimensions added) without a copy.

        Raises:
            ShapeError: the shapes are not compatible.
        """
        new = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        new = tuple(int(n) for n in new)
        extra = len(new) - self.ndim
        if extra < 0:
            raise ShapeError(message("expand", f"shape must have {self.ndim} extents or more", new))
        strides = [0] * extra
        for have, want, step in zip(self.shape, new[extra:], self.strides):
            if have != want and have != 1:
                raise ShapeError(
                    message("expand", f"shape must be compatible with {self.shape}", new)
                )
            strides.append(step if have == want else 0)
        return self._view(new, tuple(strides), self.offset, ("expand", self.shape))

    def squeeze(self, axis: int | None = None) -> Tensor:
        """Extents of 1 removed: all, or the one given."""
        if axis is None:
            keep = [k for k, n in enumerate(self.shape) if n != 1]
        else:
            axis = _axis("squeeze", axis, self.ndim)
            if self.shape[axis] != 1:
                raise ShapeError(message("squeeze", f"axis {axis} must have extent 1", self.shape))
            keep = [k for k in range(self.ndim) if k != axis]
        return self._view(
            tuple(self.shape[k] for k in keep),
            tuple(self.strides[k] for k in keep),
            self.offset,
            ("reshape", self.shape),
        )

    def unsqueeze(self, axis: int) -> Tensor:
        """An extent of 1 inserted before `axis`."""
        axis = _axis("unsqueeze", axis, self.ndim + 1)
        return self._view(
            (*self.shape[:axis], 1, *self.shape[axis:]),
            (*self.strides[:axis], 1, *self.strides[axis:]),
            self.offset,
            ("reshape", self.shape),
        )

    def flip(self, *axes: Any) -> Tensor:
        """The order of the elements reversed along `axes` (all when none is given)."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        chosen = [_axis("flip", a, self.ndim) for a in given] or range(self.ndim)
        key = [slice(None)] * self.ndim
        for a in chosen:
            key[a] = slice(None, None, -1)
        return self[tuple(key)]

    def __getitem__(self, key: Any) -> Tensor:
        """Basic indexing: integers, stepped slices (either way), Ellipsis and None give a view.

        Raises:
            ShapeError: an index is out of range or there are too many.
        """
        shape, strides, offset = indexed(self.shape, self.strides, self.offset, key)
        return self._view(shape, strides, offset, ("index", self.shape, key))


def resolve_shape(where: str, shape: Sequence[Any], size: int) -> Shape:
    """`shape` (extents, or one sequence of them) with a -1 filled in for `size` elements."""
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    new = [int(n) for n in given]
    if new.count(-1) > 1:
        raise ShapeError(message(where, "shape may hold one -1", tuple(new)))
    if -1 in new:
        rest = math.prod(n for n in new if n != -1)
        if rest == 0 or size % rest:
            raise ShapeError(message(where, f"shape must hold {size} elements", tuple(new)))
        new[new.index(-1)] = size // rest
    if math.prod(new) != size or any(n < 0 for n in new):
        raise ShapeError(message(where, f"shape must hold {size} elements", tuple(new)))
    return tuple(new)


def _axis(where: str, axis: SupportsIndex, ndim: int) -> int:
    k = axis.__index__()
    if not -ndim <= k < ndim:
        raise ShapeError(message(where, f"axis must be within {ndim} dimensions", k))
    return k % ndim


def reshaped_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """The strides that give `new` over the same elements without a copy, or None.

    Runs of old dimensions that step evenly are one long dimension; every new extent must lie
    within one such run.
    """
    if 0 in shape:
        return dense_strides(new)
    runs: list[tuple[int, int]] = []
    for n, s in zip(shape, strides):
        if n == 1:
            continue
        if runs and runs[-1][1] == s * n:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    out: list[int] = []
    left = 1
    step = 1
    for n in reversed(new):
        if n == 1:
            out.append(step)
            continue
        if left == 1:
            if not runs:
                return None
            left, step = runs.pop()
        if left % n:
            return None
        out.append(step)
        left //= n
        step *= n
    return tuple(reversed(out))


def indexed(shape: Shape, strides: Shape, offset: int, key: Any) -> tuple[Shape, Shape, int]:
    """(shape, strides, offset) of the view that a basic index gives."""
    keys = list(key) if isinstance(key, tuple) else [key]
    n_dims = sum(k is not None and k is not Ellipsis for k in keys)
    if n_dims > len(shape):
        raise ShapeError(message("getitem", f"index must have at most {len(shape)} parts", n_dims))
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    new_shape: list[int] = []
    new_strides: list[int] = []
    dim = 0
    for k in keys:
        if k is Ellipsis:
            for _ in range(len(shape) - n_dims):
                new_shape.append(shape[dim])
                new_strides.append(strides[dim])
                dim += 1
        elif k is None:
            new_shape.append(1)
            new_strides.append(1)
        elif isinstance(k, slice):
            start, stop, step = k.indices(shape[dim])
            count = len(range(start, stop, step))
            new_shape.append(count)
            new_strides.append(strides[dim] * step)
            offset += strides[dim] * start if count else 0
            dim += 1
        elif hasattr(k, "__index__") and not isinstance(k, (bool, np.ndarray)):
            i = k.__index__()
            if not -shape[dim] <= i < shape[dim]:
                raise ShapeError(
                    message("getitem", f"index must be within extent {shape[dim]} of axis {dim}", i)
                )
            offset += strides[dim] * (i % shape[dim])
            dim += 1
        else:
            do = "use integers, slices, None or ...; for a gather use bt.embedding"
            raise DTypeError(message("getitem", "unsupported index", type(k).__name__, do))
    return tuple(new_shape), tuple(new_strides), offset


# ------------------------------------------------------------------------ making
def as_extents(where: str, shape: Any) -> Shape:
    """A shape from an int or a sequence of ints.

    Raises:
        ShapeError: an extent is negative.
    """
    new = (int(shape),) if hasattr(shape, "__index__") else tuple(int(n) for n in shape)
    if any(n < 0 for n in new):
        raise ShapeError(message(where, "extents must not be negative", new))
    return new


def allocate(shape: Shape, dtype: DType) -> Tensor:
    """An unwritten, contiguous tensor, for launchers: `empty` without its checks."""
    return Tensor(Storage(math.prod(shape) * dtype.itemsize), shape, None, 0, dtype)


def empty(shape: Any, dtype: Any = dtypes.float32) -> Tensor:
    """A tensor whose elements have not been written yet."""
    return allocate(as_extents("empty", shape), as_dtype(dtype))


def empty_like(t: Tensor, dtype: Any = None) -> Tensor:
    """An unwritten, contiguous tensor of the same shape and, unless given, dtype."""
    dtype = t.dtype if dtype is None else as_dtype(dtype)
    return Tensor(Storage(t.size * dtype.itemsize), t.shape, None, 0, dtype)


def zeros(shape: Any, dtype: Any = dtypes.float32) -> Tensor:
    """A tensor of zeros."""
    out = empty(shape, dtype)
    if out.size:
        transfer.fill_bytes(out.pointer, 0, out.n_bytes)
    return out


def from_numpy(values: Any, dtype: Any = None) -> Tensor:
    """A tensor with a copy of a NumPy array.

    Args:
        values: an array of any shape and strides.
        dtype: the tensor's dtype; the array's own when None.

    Raises:
        DTypeError: blutrain has no such dtype.
    """
    values = np.asarray(values)
    wanted = as_dtype(values.dtype if dtype is None else dtype)
    stored = dtypes.to_storage(values, wanted)
    out = empty(values.shape, wanted)
    if out.size:
        transfer.copy_to_device(out.pointer, stored)
    return out
