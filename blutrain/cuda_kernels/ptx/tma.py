"""The copy engine: boxes of a tensor between global and shared memory, one instruction each.

A tensor map (128 bytes, made by `blutrain.device.cuda.tensor_map`) says where a tensor of up to
five dimensions lies, what box is copied at a time, and how the box is swizzled in shared memory.
One thread starts a copy; its bytes count down at an mbarrier. What lies outside the tensor is
filled with zeros when read, and not written.

Coordinates are in elements, the fastest dimension first. sm_90.

Source: PTX ISA 9.0, sections 9.7.9.27 (cp.async.bulk.tensor) and 9.7.13.4 (fence.proxy.tensormap).
"""

from __future__ import annotations

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32, _i64 = types.int32, types.int64

tma_load = instruction(
    "tma_load",
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[$0], [$1, {$2, $3, $4}], [$5];",
    "r,l,r,r,r,r,~{memory}",
    types.void,
    (_i32, _i64, _i32, _i32, _i32, _i32),
    doc="(shared, map, fast, slow, batch, barrier): copy the box at these coordinates to `shared`.",
)
tma_load_4d = instruction(
    "tma_load_4d",
    "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[$0], [$1, {$2, $3, $4, $5}], [$6];",
    "r,l,r,r,r,r,r,~{memory}",
    types.void,
    (_i32, _i64, _i32, _i32, _i32, _i32, _i32),
    doc="(shared, map, x, row, head, batch, barrier): copy the box at these coordinates.",
)
tma_store_wait_read = instruction(
    "tma_store_wait_read",
    "cp.async.bulk.wait_group.read 0;",
    "~{memory}",
    types.void,
    (),
    doc="Wait until all groups have read their shared memory, which may then be written again.",
)
# The map was written by an ordinary kernel: the copy engine reads it through another cache.
tensor_map_acquire = instruction(
    "tensor_map_acquire",
    "fence.proxy.tensormap::generic.acquire.gpu [$0], 128;",
    "l,~{memory}",
    types.void,
    (_i64,),
    doc="(map): let the copy engine see a tensor map that a kernel before this one wrote.",
)
