"""The cost model's arithmetic against published values: sectors, wavefronts, turns, occupancy."""

from __future__ import annotations

import random
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from blutrain.device.cpu.explain import counting
from blutrain.device.cpu.explain.occupancy import MULTIPROCESSORS, Occupancy, occupancy
from blutrain.device.cpu.explain.warps import group
from blutrain.errors import KernelError

LANES = np.arange(32)[None, :]
EVERYONE = np.ones((1, 32), bool)


# The Best Practices Guide's figures: "Coalesced Access to Global Memory" -------------------------


@pytest.mark.parametrize(
    ("addresses", "size", "expected"),
    [
        (4 * LANES, 4, 4),  # a simple access pattern: four 32-byte transactions
        (4 * LANES + 4, 4, 5),  # a misaligned sequence of addresses falls into five
        (8 * LANES, 4, 8),  # a stride of two: half of the bandwidth
        (128 * LANES, 4, 32),
        (0 * LANES, 4, 1),  # all lanes read one word
        (8 * LANES, 8, 8),
        (16 * LANES, 16, 16),
        (LANES, 1, 1),
        (4 * (31 - LANES), 4, 4),  # the order within a warp does not matter
        (4 * LANES + 2, 4, 5),  # a lane that is not aligned reaches into a fifth
    ],
)
def test_sectors(addresses: np.ndarray, size: int, expected: int) -> None:
    assert counting.sectors(addresses, EVERYONE, size).tolist() == [expected]


def test_sectors_of_some_lanes() -> None:
    few = LANES < 5
    assert counting.sectors(4 * LANES, few, 4).tolist() == [1]
    assert counting.sectors(4 * LANES, few & False, 4).tolist() == [0]


# The same guide: "Shared Memory and Memory Banks" ------------------------------------------------


@pytest.mark.parametrize("stride", range(1, 65))
def test_wavefronts_of_a_stride_are_its_common_divisor_with_32(stride: int) -> None:
    found = counting.wavefronts(4 * stride * LANES, EVERYONE, 4)
    assert found.tolist() == [np.gcd(stride, 32)]


@pytest.mark.parametrize(
    ("addresses", "size", "expected"),
    [
        (0 * LANES, 4, 1),  # a broadcast
        (4 * (LANES // 2), 4, 1),  # a multicast
        (LANES, 1, 1),  # four lanes share a word
        (2 * LANES, 2, 1),
        (8 * LANES, 8, 2),  # half-warps
        (16 * LANES, 16, 4),  # quarter-warps
        (16 * 2 * LANES, 16, 8),
        (16 * 8 * LANES, 16, 32),
        (0 * LANES, 16, 4),
        (128 * (LANES % 2), 4, 2),  # two words in one bank
    ],
)
def test_wavefronts(addresses: np.ndarray, size: int, expected: int) -> None:
    assert counting.wavefronts(addresses, EVERYONE, size).tolist() == [expected]


def test_wavefronts_of_some_lanes() -> None:
    first_quarter = LANES < 8
    assert counting.wavefronts(16 * LANES, first_quarter, 16).tolist() == [1]
    assert counting.least_wavefronts(first_quarter, 16).tolist() == [1]
    assert counting.wavefronts(128 * LANES, first_quarter, 4).tolist() == [8]


def test_many_accesses_are_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    addresses = 4 * rng.integers(0, 4096, (50, 32))
    active = rng.random((50, 32)) < 0.7
    together = counting.wavefronts(addresses, active, 4)
    for k in range(50):
        words = {int(a) // 4 for a in addresses[k, active[k]]}
        banks = [w % 32 for w in words]
        assert together[k] == max(map(banks.count, banks))
        assert counting.sectors(addresses, active, 4)[k] == len({4 * w // 32 for w in words})
        lanes = addresses[k, active[k]].tolist()
        assert counting.turns(addresses, active)[k] == max(map(lanes.count, lanes))


# Grouping by warps -------------------------------------------------------------------------------


def test_groups_do_not_depend_on_the_order_of_threads() -> None:
    threads = np.repeat(np.arange(96), 3)
    values = np.tile(np.arange(3), 96) * 1000 + threads
    drawn = np.random.default_rng(0).permutation(96)
    other = np.concatenate([np.flatnonzero(threads == t) for t in drawn])
    a, b = group(threads, values), group(threads[other], values[other])
    assert a.values.shape == (9, 32)
    np.testing.assert_array_equal(a.values, b.values)
    np.testing.assert_array_equal(
        a.values % 1000 // 32, np.repeat([0, 1, 2], 3)[:, None] + 0 * LANES
    )


def test_nothing_grouped_is_no_instruction() -> None:
    assert group([], []).active.shape == (0, 32)


# Occupancy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limited_by"),
    [
        (256, 32, 0, 8, "threads and registers"),
        (256, 40, 0, 6, "registers"),
        (32, 16, 0, 32, "blocks"),
        (128, 32, 100 << 10, 2, "shared memory"),
        (128, 32, 227 << 10, 1, "shared memory"),
        (1024, 65, 0, 0, "registers"),
        (128, 32, 228 << 10, 0, "shared memory"),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, blocks: int, limited_by: str) -> None:
    found = occupancy(threads, registers, shared, "sm_90a")
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


C = """
#include <stdio.h>
#include <stdlib.h>
#include "cuda_occupancy.h"
int main(void) {
    int major, minor, resident, threads, registers;
    size_t per_sm, shared;
    while (scanf("%d %d %d %zu %d %d %zu", &major, &minor, &resident, &per_sm, &threads, &registers,
                 &shared) == 7) {
        cudaOccDeviceProp p = {0};
        p.computeMajor = major, p.computeMinor = minor, p.maxThreadsPerBlock = 1024;
        p.maxThreadsPerMultiprocessor = resident, p.warpSize = 32, p.numSms = 1;
        p.regsPerBlock = p.regsPerMultiprocessor = 65536, p.sharedMemPerBlock = 49152;
        p.sharedMemPerMultiprocessor = per_sm, p.sharedMemPerBlockOptin = per_sm - 1024;
        p.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes a = {0};
        a.maxThreadsPerBlock = 1024, a.numRegs = registers, a.sharedSizeBytes = shared;
        a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        cudaOccDeviceState s = {0};
        s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult r;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, 0)) exit(1);
        printf("%d\\n", r.activeBlocksPerMultiprocessor);
    }
}
"""


def header() -> Path | None:
    """CUDA's own calculator, a C header that the package nvidia-cuda-runtime brings."""
    for package in metadata.distributions():
        if (package.name or "").startswith("nvidia-cuda-runtime"):
            for file in package.files or []:
                if file.name == "cuda_occupancy.h":
                    return Path(str(package.locate_file(file)))
    return None


@pytest.mark.skipif(header() is None or not shutil.which("cc"), reason="no cuda_occupancy.h or cc")
def test_occupancy_is_that_of_cuda_itself(tmp_path: Path) -> None:
    draw = random.Random(0)
    asked, ours = [], []
    for _ in range(5000):
        sm = draw.choice(list(MULTIPROCESSORS))
        limit, number = MULTIPROCESSORS[sm], sm.removeprefix("sm_")
        threads, registers = draw.randint(1, 1024), draw.randint(1, 255)
        shared = draw.choice([0, draw.randint(0, 20_000), draw.randint(0, 240_000)])
        case = (number[:-1], number[-1], limit.threads, limit.shared, threads, registers, shared)
        asked.append(" ".join(map(str, case)))
        ours.append(occupancy(threads, registers, shared, sm).blocks)
    source, program = tmp_path / "occupancy.c", tmp_path / "occupancy"
    source.write_text(C)
    found = header()
    assert found is not None
    command = ["cc", "-w", f"-I{found.parent}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(program)], input="\n".join(asked), capture_output=True, text=True, check=True
    )
    assert [int(line) for line in done.stdout.split()] == ours


def test_occupancy_scales_from_none_to_all() -> None:
    assert occupancy(256, 32, 0).fraction == 1.0
    assert isinstance(occupancy(64, 32, 0), Occupancy)
    assert occupancy(64, 32, 0).fraction == 1.0
    assert occupancy(32, 32, 0).fraction == 0.5


def test_bad_input() -> None:
    with pytest.raises(KernelError, match=r"unknown architecture, got sm_70; use one of sm_80, "):
        occupancy(32, 32, 0, "sm_70")
    with pytest.raises(KernelError, match=r"a block must have 1 to 1024 threads, got 2048"):
        occupancy(2048, 32, 0)
