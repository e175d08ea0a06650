"""Blocks that meet: `cuda.cg.this_grid().sync()`."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from blutrain.device import cpu
from blutrain.errors import KernelError

WAYS = [cpu.Options(), cpu.Options(reverse=True), cpu.Options(shuffle=1, poison=True)]


@cuda.jit
def rows_in_turn(
    m,  # (n_rows, n_cols)
):
    """Each row is the one before it, reversed, plus one."""
    col = cuda.grid(1)
    g = cuda.cg.this_grid()
    for row in range(1, m.shape[0]):
        opposite = m.shape[1] - col - 1
        m[row, col] = m[row - 1, opposite] + 1
        g.sync()


@pytest.mark.parametrize("options", WAYS, ids=["in order", "reversed", "shuffled"])
def test_every_row_sees_the_whole_of_the_one_before(options):
    m = np.zeros((9, 4 * 64), np.int32)
    m[0] = np.arange(m.shape[1])
    expected = m.copy()
    for row in range(1, len(m)):
        expected[row] = expected[row - 1, ::-1] + 1
    cpu.run(rows_in_turn, 4, 64, m, options=options)
    np.testing.assert_array_equal(m, expected)


@cuda.jit
def whole_sum(
    x,  # (n,)
    partial,  # (n_blocks,)
    y,  # (n,)
):
    """x over its sum: shared memory, local variables and atomics live on over the meeting."""
    shared = cuda.shared.array(64, float32)
    total = cuda.shared.array(1, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    mine = x[i]
    shared[t] = mine
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, shared[(t + 1) % 64])
    cuda.syncthreads()
    if t == 0:
        partial[cuda.blockIdx.x] = total[0]
    cuda.cg.this_grid().sync()
    whole = float32(0)
    for b in range(cuda.gridDim.x):
        whole += partial[b]
    same = shared[t] == mine and total[0] == partial[cuda.blockIdx.x]
    y[i] = mine / whole if same else float32(-1)


def test_what_a_block_has_lives_on():
    x = np.random.default_rng(0).integers(1, 9, 5 * 64).astype(np.float32)
    partial, y = np.full(5, np.nan, np.float32), np.full_like(x, np.nan)
    cpu.run(whole_sum, 5, 64, x, partial, y)
    np.testing.assert_allclose(y, x / x.sum(), rtol=1e-6)


@cuda.jit
def under_a_condition(x, n, limit):
    """The meeting is in a branch that all threads take, which only the launch can know."""
    i = cuda.grid(1)
    for turn in range(n):
        if x[cuda.blockIdx.x * 32] < limit:
            x[i] += 1
            cuda.cg.this_grid().sync()
        else:
            x[i] += turn


def test_blocks_that_do_not_come_do_not_wait():
    x = np.zeros(64, np.int32)
    cpu.run(under_a_condition, 2, 32, x, 3, 2)
    assert (x == 2 + 2).all()


@cuda.jit
def some_blocks(x):
    if cuda.blockIdx.x > 0:
        cuda.cg.this_grid().sync()
    x[cuda.grid(1)] = 1


def test_blocks_must_all_come():
    with pytest.raises(KernelError, match=r"some_blocks: block 0 waits for the grid 0 times, block "
                       r"1 1 times; let all blocks reach every sync\(\) of the grid"):  # fmt: skip
        cpu.run(some_blocks, 3, 32, np.zeros(96, np.int32))


@cuda.jit
def fails_in_one(x):
    if cuda.blockIdx.x == 1:
        raise ValueError("no")
    cuda.cg.this_grid().sync()
    x[cuda.blockIdx.x] = int32(1)


def test_a_block_that_raises_ends_the_others():
    x = np.zeros(3, np.int32)
    with pytest.raises(KernelError, match=r"kernel fails_in_one: raised ValueError\('no'\)"):
        cpu.run(fails_in_one, 3, 32, x)
    assert (x == 0).all()


def test_too_many_blocks():
    with pytest.raises(KernelError, match="waits for all of its blocks may have 2048, got 5000"):
        cpu.run(some_blocks, 5000, 1, np.zeros(5000, np.int32))


@cuda.jit
def value_of_a_sync(x):
    x[0] = cuda.cg.this_grid().sync()


def test_a_sync_is_a_statement():
    with pytest.raises(KernelError, match=r"a grid's sync\(\) must be a statement of its own"):
        cpu.run(value_of_a_sync, 1, 32, np.zeros(3, np.int32))
