"""A CUDA driver in Python over host memory, so that the cuda target's logic runs without a GPU.

It does what `libcuda.so.1` does with the arguments that `blutrain.device.cuda.driver` passes, and
insists on what the real one insists on: a thread needs a context, freed memory must have been
allocated, a launch must not ask for more shared memory than its kernel was allowed.
"""

import ctypes
import itertools
import re
import threading

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 1, 2, 3, 201
CAPACITY = 64 << 20
CONTEXT = 0x77


class PretendDriver:
    CLOCK_KHZ = 1_980_000

    def __init__(self) -> None:
        self.initialised = False
        self.thread = threading.local()
        self.memory: dict[int, ctypes.Array] = {}
        self.launches: list[tuple] = []
        self.attributes: dict[int, int] = {}
        self.registers, self.max_threads, self.static_shared = 32, 1024, 0
        self.fail_with = 0  # what launches and module loads return
        self.log = b""
        self.modules: list[tuple[bytes, dict[int, int]]] = []
        self.alive = self.created = 0  # streams and events
        self.queues: list[int] = []  # of copies and fills, in order
        self.unfinished: set[int] = set()  # events that have not happened
        self.capturing = 0  # the stream
        self.mode = 1
        self.ranges: dict[int, tuple[int, ctypes.Array]] = {}
        self.handles: dict[int, int] = {}  # of physical memory: bytes
        self.mapped: dict[int, tuple[int, int]] = {}  # (bytes, handle)
        self.graph_launches: list[tuple[int, int]] = []
        self.refused = 0  # calls without a context

    def __getitem__(self, name: str):
        return getattr(self, name)

    def _needs_context(self) -> int:
        if self.initialised and getattr(self.thread, "context", None) == CONTEXT:
            return 0
        self.refused += 1
        return INVALID_CONTEXT if self.initialised else NOT_INITIALIZED

    # The driver and the device

    def cuInit(self, flags):
        self.initialised = True
        return 0

    def cuGetErrorName(self, status, out):
        names = {1: b"INVALID_VALUE", 2: b"OUT_OF_MEMORY", 700: b"ILLEGAL_ADDRESS"}
        out._obj.value = b"CUDA_ERROR_" + names.get(status, b"OTHER")
        return 0

    def cuGetErrorString(self, status, out):
        out._obj.value = b"what happened"
        return 0

    def cuDriverGetVersion(self, out):
        out._obj.value = 13020
        return 0

    def cuDeviceGetName(self, out, size, device):
        out.value = b"Pretend GPU"
        return 0 if self.initialised else NOT_INITIALIZED

    def cuDeviceGetAttribute(self, out, which, device):
        out._obj.value = {13: self.CLOCK_KHZ, 75: 9, 76: 0, 16: 132, 97: 227 << 10, 102: 1}[which]
        return 0 if self.initialised else NOT_INITIALIZED

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = CAPACITY
        return 0

    def cuDevicePrimaryCtxRetain(self, out, device):
        out._obj.value = CONTEXT
        return 0 if self.initialised else NOT_INITIALIZED

    def cuCtxSetCurrent(self, context):
        self.thread.context = context
        return 0

    def cuCtxSynchronize(self):
        return self._needs_context() or self.fail_with

    # Memory

    def _used(self) -> int:
        return sum(map(len, self.memory.values())) + sum(self.handles.values())

    def cuMemGetInfo_v2(self, free, total):
        free._obj.value, total._obj.value = CAPACITY - self._used(), CAPACITY
        return self._needs_context()

    def cuMemAlloc_v2(self, out, nbytes):
        if self._needs_context():
            return self._needs_context()
        if self._used() + nbytes > CAPACITY:
            return OUT_OF_MEMORY
        memory = (ctypes.c_char * nbytes)()
        out._obj.value = ctypes.addressof(memory)
        self.memory[out._obj.value] = memory
        return 0

    def cuMemFree_v2(self, pointer):
        if self._needs_context():
            return self._needs_context()
        return 0 if self.memory.pop(pointer, None) is not None else INVALID_VALUE

    def cuMemcpyHtoD_v2(self, destination, source, nbytes):
        if not self._needs_context():
            ctypes.memmove(destination, source, nbytes)
        return self._needs_context()

    cuMemcpyDtoH_v2 = cuMemcpyHtoD_v2

    def cuMemcpyDtoDAsync_v2(self, destination, source, nbytes, stream):
        self.queues.append(stream)
        return self.cuMemcpyHtoD_v2(destination, source, nbytes)

    cuMemcpyHtoDAsync_v2 = cuMemcpyDtoHAsync_v2 = cuMemcpyDtoDAsync_v2

    def cuMemsetD8Async(self, pointer, byte, nbytes, stream):
        self.queues.append(stream)
        if not self._needs_context():
            ctypes.memset(pointer, byte, nbytes)
        return self._needs_context()

    # Streams and events

    def cuEventCreate(self, out, flags):
        self.alive += 1
        self.created += 1
        out._obj.value = 0x7F00_0000_0000 + self.created
        if self._needs_context():
            self.alive -= 1
        return self._needs_context()

    def cuStreamCreateWithPriority(self, out, flags, priority):
        return self.cuEventCreate(out, flags)

    def cuCtxGetStreamPriorityRange(self, lowest, highest):
        lowest._obj.value, highest._obj.value = 0, -5
        return self._needs_context()

    def cuEventQuery(self, event):
        return self._needs_context() or (600 if event in self.unfinished else 0)

    cuStreamQuery = cuEventQuery

    def cuStreamDestroy_v2(self, handle):
        self.alive -= 1
        return 0

    cuEventDestroy_v2 = cuStreamDestroy_v2

    def cuStreamSynchronize(self, *arguments):
        return self._needs_context()

    cuStreamWaitEvent = cuEventRecord = cuEventSynchronize = cuStreamSynchronize

    def cuEventElapsedTime(self, out, start, end):
        out._obj.value = 1500.0
        return 0

    # Virtual memory

    def cuMemGetAllocationGranularity(self, out, properties, option):
        out._obj.value = 2 << 20
        return self._needs_context()

    def cuMemAddressReserve(self, out, nbytes, alignment, wish, flags):
        memory = (ctypes.c_char * (nbytes + (2 << 20)))()
        out._obj.value = -(-ctypes.addressof(memory) // (2 << 20)) * (2 << 20)
        self.ranges[out._obj.value] = (nbytes, memory)
        return self._needs_context()

    def cuMemAddressFree(self, pointer, nbytes):
        if self.ranges.get(pointer, (0, None))[0] != nbytes:
            return INVALID_VALUE
        del self.ranges[pointer]
        return self._needs_context()

    def cuMemCreate(self, out, nbytes, properties, flags):
        if nbytes % (2 << 20) or (self.capturing and self.mode != 2):
            return INVALID_VALUE
        if self._used() + nbytes > CAPACITY:
            return OUT_OF_MEMORY
        self.created += 1
        out._obj.value = self.created
        self.handles[self.created] = nbytes
        return self._needs_context()

    def cuMemRelease(self, handle):
        return 0 if self.handles.pop(handle, None) else INVALID_VALUE

    def cuMemMap(self, pointer, nbytes, offset, handle, flags):
        inside = any(p <= pointer and pointer + nbytes <= p + n[0] for p, n in self.ranges.items())
        if not inside or self.handles[handle] != nbytes or pointer in self.mapped:
            return INVALID_VALUE
        self.mapped[pointer] = (nbytes, handle)
        return self._needs_context()

    def cuMemSetAccess(self, pointer, nbytes, access, count):
        return 0 if self.mapped[pointer][0] == nbytes and count == 1 else INVALID_VALUE

    def cuMemUnmap(self, pointer, nbytes):
        if self.mapped.get(pointer, (0, 0))[0] != nbytes:
            return INVALID_VALUE
        del self.mapped[pointer]
        return 0

    # Graphs

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.capturing, self.mode = stream, mode
        return self._needs_context()

    def cuStreamEndCapture(self, stream, out):
        assert stream == self.capturing
        self.capturing = 0
        out._obj.value = 77
        return self.fail_with

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self.launches)
        return 0

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        out._obj.value = graph + 1
        self.alive += 1
        return 0

    def cuGraphDestroy(self, graph):
        return 0

    def cuGraphLaunch(self, executable, stream):
        self.graph_launches.append((executable, stream))
        return 0

    def cuGraphExecDestroy(self, executable):
        self.alive -= 1
        return 0

    # Kernels

    def cuModuleLoadDataEx(self, out, image, n, options, values):
        if self._needs_context():
            return self._needs_context()
        given = {options[k]: values[k] for k in range(n)}
        self.modules.append((image, given))
        if self.fail_with:
            ctypes.memmove(given[5], self.log, len(self.log))
        out._obj.value = 1
        return self.fail_with

    def cuModuleGetFunction(self, out, module, name):
        out._obj.value = 0x1234_5678_9ABC
        return 0

    def cuFuncGetAttribute(self, out, which, function):
        known = {0: self.max_threads, 1: self.static_shared, 3: 0, 4: self.registers}
        out._obj.value = known[which]
        return 0

    def cuFuncSetAttribute(self, function, which, value):
        self.attributes[which] = value
        return 0

    def cuLaunchKernel(self, function, *rest):
        *geometry, shared, stream, parameters, extra = rest
        pair = (function, parameters)
        if self._needs_context():
            return self._needs_context()
        allowed = self.attributes.get(8, (48 << 10) - self.static_shared)
        if shared > allowed or extra is not None:
            return INVALID_VALUE
        # What `c_void_p.from_param` makes shows its value in its repr alone.
        function, parameters = (int(re.search("0x[0-9a-f]+", repr(a))[0], 16) for a in pair)
        addresses = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        given = itertools.takewhile(bool, map(addresses.__getitem__, itertools.count()))
        slots = [ctypes.c_int64.from_address(p).value for p in given]
        queue = 0 if stream is None else stream.value
        self.launches.append((function, tuple(geometry), shared, queue, slots))
        return self.fail_with
