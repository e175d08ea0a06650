"""The caching allocator: single properties, errors, threads, the host backend."""

import ctypes
import gc
import random
import threading
import weakref
from collections import Counter

import pytest

from blutrain import memory
from blutrain.errors import DeviceError, OutOfMemoryError
from blutrain.memory.allocator import MIB, CachingAllocator
from blutrain.memory.backend import HostBackend
from blutrain.memory.private_pool import MemoryPool
from tests.memory.pretend_backend import PretendBackend, PretendVirtual


@pytest.fixture
def backend():
    return PretendBackend(capacity=100 * MIB)


@pytest.fixture
def allocator(backend):
    return CachingAllocator(backend)


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [
        (1, 512),
        (512, 512),
        (513, 1024),
        (MIB, MIB),
        (MIB + 1, MIB + (64 << 10)),
        (3 * MIB, 3 * MIB),
    ],
)
def test_sizes_are_rounded_up(allocator, nbytes, size):
    block = allocator.malloc(nbytes)
    assert (block.size, block.requested) == (size, nbytes)
    assert block.pointer % 512 == 0
    stats = allocator.statistics()
    assert (stats.allocated, stats.requested) == (size, nbytes)


def test_the_same_size_gets_the_same_memory_back(allocator):
    first = allocator.malloc(5000)
    pointer = first.pointer
    allocator.free(first)
    assert allocator.malloc(5000).pointer == pointer


def test_what_one_pool_frees_no_other_gets(allocator):
    pool = MemoryPool(allocator)
    with pool:
        first = allocator.malloc(5000)
    allocator.free(first)
    assert allocator.malloc(5000).pointer != first.pointer
    with pool:
        assert allocator.malloc(5000).pointer == first.pointer


def test_an_empty_block_takes_no_memory(allocator, backend):
    block = allocator.malloc(0)
    assert (block.pointer, block.size) == (0, 0)
    assert backend.reserved == 0
    allocator.free(block)
    with pytest.raises(DeviceError, match="freed before"):
        allocator.free(block)


def test_a_negative_size_is_refused(allocator):
    with pytest.raises(DeviceError, match="nbytes must not be negative, got -1"):
        allocator.malloc(-1)


def test_freeing_twice_is_an_error_even_after_the_memory_went_to_another(allocator):
    first = allocator.malloc(1000)
    allocator.free(first)
    with pytest.raises(DeviceError, match="freed before"):
        allocator.free(first)
    second = allocator.malloc(1000)
    assert second.pointer == first.pointer
    with pytest.raises(DeviceError, match="freed before"):
        allocator.free(first)
    assert allocator.statistics().allocated == 1024


def test_small_and_large_requests_come_from_different_segments(allocator, backend):
    allocator.malloc(1000)
    allocator.malloc(5 * MIB)
    assert sorted(backend.segments.values()) == [2 * MIB, 20 * MIB]
    allocator.malloc(16 * MIB)
    assert sorted(backend.segments.values()) == [2 * MIB, 16 * MIB, 20 * MIB]


def test_best_fit_takes_the_smallest_hole(allocator):
    blocks = [allocator.malloc(size * MIB) for size in (6, 2, 4, 2, 3)]
    six, _, four, *_ = blocks
    hole = four.pointer
    allocator.free(six)
    allocator.free(four)
    assert allocator.malloc(4 * MIB - (64 << 10)).pointer == hole


def test_neighbours_merge(allocator, backend):
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    for block in (blocks[2], blocks[0], blocks[3], blocks[1]):
        allocator.free(block)
    assert allocator.statistics().largest_free == 20 * MIB
    assert allocator.malloc(9 * MIB).pointer == blocks[0].pointer
    assert len(backend.segments) == 1


def test_an_expandable_segment_grows_by_what_is_missing(backend):
    virtual = PretendVirtual(backend)
    allocator = CachingAllocator(backend, virtual)
    first, second = allocator.malloc(10 * MIB), allocator.malloc(6 * MIB)
    allocator.free(second)
    third = allocator.malloc(30 * MIB)  # 6 MiB before it are free
    assert third.pointer == second.pointer
    assert allocator.statistics().reserved == virtual.mapped_bytes == 40 * MIB
    assert allocator.statistics().n_segments == len(virtual.ranges) == 1
    allocator.free(first)
    allocator.empty_cache()
    assert virtual.mapped_bytes == 30 * MIB
    assert virtual.settled
    hole = allocator.malloc(8 * MIB)  # back in the hole, in whole
    assert hole.pointer == first.pointer
    assert virtual.mapped_bytes == 38 * MIB


def test_pieces_of_a_request_that_fails_half_way_are_given_back(backend):
    virtual = PretendVirtual(backend)
    allocator = CachingAllocator(backend, virtual)
    kept = allocator.malloc(20 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(90 * MIB)  # a piece of 64 MiB would fit, the rest does not
    assert virtual.mapped_bytes == allocator.statistics().reserved == 20 * MIB
    allocator.free(kept)
    allocator.malloc(90 * MIB)


def test_plain_segments_serve_where_there_are_no_addresses(backend):
    virtual = PretendVirtual(backend)
    virtual.has_addresses = False
    allocator = CachingAllocator(backend, virtual)
    assert allocator.malloc(30 * MIB).pointer in backend.segments


def test_empty_cache_gives_back_what_is_not_in_use(allocator, backend):
    kept = allocator.malloc(1000)
    allocator.free(allocator.malloc(30 * MIB))
    assert allocator.statistics().reserved == 32 * MIB
    allocator.empty_cache()
    assert allocator.statistics().reserved == backend.reserved == 2 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert backend.segments == {}


def test_the_cache_is_given_back_before_memory_runs_out(allocator, backend):
    for _ in range(4):
        allocator.free(allocator.malloc(60 * MIB))
        allocator.free(allocator.malloc(80 * MIB))
    stats = allocator.statistics()
    assert stats.n_retries > 0
    assert stats.n_out_of_memory == 0
    assert backend.reserved == stats.reserved <= 100 * MIB


def test_a_smaller_segment_is_taken_when_the_usual_one_does_not_fit(allocator, backend):
    allocator.malloc(90 * MIB)
    allocator.malloc(3 * MIB)
    assert sorted(backend.segments.values()) == [4 * MIB, 90 * MIB]


def test_garbage_in_cycles_is_collected_before_memory_runs_out(allocator):
    class Owner:
        def __init__(self, block):
            self.me = self
            weakref.finalize(self, allocator.free, block)

    gc.disable()
    try:
        for _ in range(5):
            Owner(allocator.malloc(60 * MIB))
    finally:
        gc.enable()
    assert allocator.statistics().n_out_of_memory == 0


def test_out_of_memory_says_where_the_memory_is(allocator):
    blocks = [allocator.malloc(20 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    before = allocator.statistics()
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(90 * MIB)
    text = str(caught.value)
    assert text.startswith("malloc: there must be room for 90.00 MiB more, got 40.00 MiB allocated")
    for part in ("40.00 MiB reserved", "60.00 MiB left of the device's 100.00 MiB", "largest free"):
        assert part in text
    assert "fragmentation" in text
    assert "; use a smaller batch" in text
    after = allocator.statistics()
    assert (after.allocated, after.n_out_of_memory) == (before.allocated, 1)
    allocator.malloc(50 * MIB)


def test_a_limit_is_obeyed(allocator):
    allocator.set_limit(30 * MIB)
    block = allocator.malloc(25 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"of a limit of 30\.00 MiB"):
        allocator.malloc(10 * MIB)
    allocator.free(block)
    allocator.malloc(28 * MIB)
    assert allocator.total() == 30 * MIB
    allocator.set_limit(None)
    allocator.malloc(40 * MIB)
    with pytest.raises(DeviceError, match="positive number of bytes"):
        allocator.set_limit(0)


def test_peaks(allocator):
    block = allocator.malloc(10 * MIB)
    allocator.free(block)
    allocator.malloc(MIB)
    stats = allocator.statistics()
    assert (stats.allocated, stats.peak_allocated) == (MIB, 10 * MIB)
    allocator.empty_cache()
    allocator.reset_peak()
    stats = allocator.statistics()
    assert (stats.peak_allocated, stats.peak_reserved) == (MIB, 2 * MIB)


def test_every_peak_is_the_most_that_there_was(allocator):
    """Nobody asks in between, so nothing is noted before it must be."""
    draw = random.Random(0)
    kept, now, peak = [], Counter(), Counter()

    def count(block, sign):
        for pool in ("all", "small_pool" if block.size <= MIB else "large_pool"):
            now[f"allocated_bytes.{pool}"] += sign * block.size
            now[f"active_bytes.{pool}"] += sign * block.size
            now[f"requested_bytes.{pool}"] += sign * block.requested
            now[f"allocation.{pool}"] += sign

    for _ in range(5000):
        if kept and draw.random() < 0.45 + 0.01 * len(kept):
            # Mostly the latest: then the next request often has the size that was just freed.
            block = kept.pop(-1 if draw.random() < 0.7 else 0)
            count(block, -1)
            allocator.free(block)
        else:
            kept.append(allocator.malloc(draw.choice([100, 400, 3000, 2 * MIB, 3 * MIB])))
            count(kept[-1], 1)
            peak |= now
    found = allocator.statistics().as_dict()
    assert len({block.pointer for block in kept}) == len(kept) > 0
    for name, value in now.items():
        assert (found[f"{name}.current"], found[f"{name}.peak"]) == (value, peak[name]), name
        assert found[f"{name}.allocated"] - found[f"{name}.freed"] == value, name


@pytest.mark.parametrize("expandable", [False, True])
def test_empty_cache_leaves_the_memory_of_a_private_pool(backend, expandable):
    allocator = CachingAllocator(backend, PretendVirtual(backend) if expandable else None)
    pool = MemoryPool(allocator)
    with pool:
        block = allocator.malloc(30 * MIB)
    pointer = block.pointer
    allocator.free(block)
    reserved = allocator.statistics().reserved
    allocator.empty_cache()
    assert allocator.statistics().reserved == reserved >= 30 * MIB
    with pytest.raises(OutOfMemoryError, match="reserved in private pools"):
        allocator.malloc(90 * MIB)  # not even for want of memory
    with pool:
        again = allocator.malloc(30 * MIB)
    assert again.pointer == pointer
    allocator.free(again)
    del pool
    allocator.empty_cache()
    assert allocator.statistics().reserved == 0


def test_threads_never_share_memory(allocator):
    failures = []

    def work(seed):
        mine = []
        for step in range(400):
            size = 512 * (1 + (seed * 7919 + step * 104729) % 40)
            block = allocator.malloc(size)
            mine.append(block)
            if block.pointer in live:
                failures.append(block)
            live[block.pointer] = seed
            if step % 3:
                gone = mine.pop(step % len(mine))
                del live[gone.pointer]
                allocator.free(gone)
        for block in mine:
            del live[block.pointer]
            allocator.free(block)

    live = {}
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert allocator.statistics().allocated == 0


def test_only_one_of_two_threads_frees_a_block(allocator):
    for _ in range(50):
        block, errors = allocator.malloc(1000), []

        def free(block=block, errors=errors):
            try:
                allocator.free(block)
            except DeviceError as error:
                errors.append(error)

        threads = [threading.Thread(target=free) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) == 1
    assert allocator.statistics().allocated == 0


def test_host_memory_is_writeable_and_unmapped_when_released():
    backend = HostBackend()
    allocator = CachingAllocator(backend)
    block = allocator.malloc(3 * MIB)
    ctypes.memset(block.pointer, 7, 3 * MIB)
    assert ctypes.string_at(block.pointer + 3 * MIB - 1, 1) == b"\x07"
    allocator.free(block)
    allocator.empty_cache()
    assert backend._mappings == {}


def test_the_host_refuses_more_than_there_is():
    backend = HostBackend()
    assert backend.reserve(backend.total() + 1) is None
    assert backend.reserve(1 << 62) is None
    assert 0 < backend.available() <= backend.total()
    with pytest.raises(OutOfMemoryError, match="there must be room for"):
        memory.malloc(1 << 50)


def test_the_public_functions_agree_with_each_other():
    memory.reset_peak_memory_stats()
    before = memory.memory_allocated()
    block = memory.malloc(10_000)
    assert memory.memory_allocated() - before == 10_240
    memory.free(block)
    assert memory.memory_allocated() == before
    assert memory.max_memory_allocated() >= before + 10_240
    assert memory.max_memory_reserved() >= memory.memory_reserved() >= before
    stats = memory.memory_stats()
    assert stats["allocated_bytes.all.current"] == before
    assert stats["reserved_bytes.all.peak"] == memory.max_memory_reserved()
    assert "largest free block" in memory.memory_summary()
    memory.empty_cache()
    memory.set_memory_limit(1 << 40)
    memory.set_memory_limit(None)


def test_a_fraction_of_the_device_is_a_limit():
    allocator = memory.allocator
    try:
        memory.set_memory_fraction(0.25)
        assert allocator.total() == allocator.device_total() // 4
        memory.set_memory_fraction(1)
        assert allocator.total() == allocator.device_total()
    finally:
        memory.set_memory_limit(None)
    for wrong in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(DeviceError, match="set_memory_fraction: the fraction must be above 0"):
            memory.set_memory_fraction(wrong)
