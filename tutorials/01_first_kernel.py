# %% [markdown]
# # A first kernel
# **How does a GPU add up a million numbers, when each of its threads sees only a few of them?**
#
# On the way: threads and blocks, why neighbours should read neighbours, a race, and the barrier
# that ends it. Every kernel below runs on a GPU or, compiled, on the CPU: `launch` takes whichever
# is here.

# %%
import matplotlib.pyplot as plt
import numpy as np
from lesson import save, seconds
from numba import cuda, float32

import blutrain as bt
from blutrain.device import TARGET, cpu, launch

# %% [markdown]
# ## Threads and blocks
# A **kernel** is a function that many threads run at once. Nobody calls it in a loop: the loop is
# the launch. Threads come in **blocks** of equal size, blocks form the **grid**, and
#
# $$ i = \text{block index} \times \text{block size} + \text{thread index} $$
#
# gives each thread its own element. `cuda.grid(1)` is that formula. The grid is whole blocks, so
# the last one sticks out over the end: hence the `if`.

# %%
BLOCK = 256


@cuda.jit
def scale_kernel(
    x,  # (n,)
    y,  # (n,)
    factor,
):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = factor * x[i]


def blocks(n: int) -> int:
    """How many blocks of BLOCK threads cover n elements."""
    return (n + BLOCK - 1) // BLOCK


n = 1_000_003  # a prime: not a multiple of any block
host = np.random.default_rng(0).standard_normal(n).astype(np.float32)
x = bt.from_numpy(host)
y = bt.empty((n,), bt.float32)
launch(scale_kernel, blocks(n), BLOCK, x, y, np.float32(3.0))
assert np.array_equal(y.numpy(), np.float32(3.0) * host)
print(f"target {TARGET}: {blocks(n)} blocks of {BLOCK} threads scaled {n:,} numbers")

# %% [markdown]
# ## Neighbours read neighbours
# The hardware runs 32 consecutive threads, a **warp**, in step. When they read 32 consecutive
# floats, that is 128 bytes: one line of memory. When thread $i$ reads element $s \cdot i$ instead,
# the same 32 floats lie on up to 32 lines, and the memory moves whole lines. Threads that share
# lines are **coalesced**; $\min(s, 32)$ lines a warp is the price of a stride $s$. A CPU's cache
# lines charge it too.


# %%
@cuda.jit
def strided_copy_kernel(
    x,  # (n,)
    y,  # (n / stride,)
    stride,
):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i * stride]


def lines_per_warp(stride: int, line_bytes: int = 128) -> int:
    """How many lines the 32 reads of a warp touch."""
    return len({lane * stride * 4 // line_bytes for lane in range(32)})


strides = [1, 2, 4, 8, 16, 32]
large = bt.zeros((1 << 22,), bt.float32)
copied = 1 << 17  # as many elements at every stride: only where they lie differs
small = bt.empty((copied,), bt.float32)
per_read = [
    seconds(lambda s=s: launch(strided_copy_kernel, blocks(copied), BLOCK, large, small, s))
    / copied
    for s in strides
]
assert lines_per_warp(1) == 1
assert lines_per_warp(32) == 32

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.bar([str(s) for s in strides], [lines_per_warp(s) for s in strides])
left.set(title="lines that a warp touches", xlabel="stride")
right.bar([str(s) for s in strides], [t * 1e9 for t in per_read])
right.set(title=f"measured here ({TARGET}): ns an element", xlabel="stride")
save(figure, "01_coalescing")
print(
    "ns an element by stride:",
    dict(zip(strides, [round(t * 1e9, 2) for t in per_read], strict=True)),
)

# %% [markdown]
# ## The sum
# $$ s = \sum_{i=0}^{n-1} x_i $$
#
# The obvious kernel gives the whole job to one thread. It is right, and it leaves every other
# thread idle.


# %%
@cuda.jit
def sum_by_one_thread_kernel(
    x,  # (n,)
    total,  # (1,)
):
    if cuda.grid(1) == 0:
        running = float32(0.0)
        for i in range(x.size):
            running += x[i]
        total[0] = running


def check(name: str, value: float, tolerance: float = 1e-4) -> None:
    """Compare with NumPy's float64 sum, relative to the sum of magnitudes."""
    exact, size = host.astype(np.float64).sum(), np.abs(host).sum(dtype=np.float64)
    error = abs(value - exact) / size
    print(f"{name:28} {value:14.4f}   relative error {error:.1e}")
    assert error < tolerance, f"{name} is wrong"


total = bt.zeros((1,), bt.float32)
launch(sum_by_one_thread_kernel, 1, BLOCK, x, total)
check("one thread", total.item())
naive_seconds = seconds(lambda: launch(sum_by_one_thread_kernel, 1, BLOCK, x, total), repeats=3)

# %% [markdown]
# ## Everybody helps, and it goes wrong
# A block can share fast **shared memory**. Each thread puts its own part there; then half of the
# threads add the other half's values to theirs, then a quarter, and after $\log_2 256 = 8$ halvings
# the sum is in cell 0:
#
# $$ \text{cell}_t \leftarrow \text{cell}_t + \text{cell}_{t+h}, \qquad h = 128, 64, \ldots, 1 $$
#
# Look at the kernel before reading on. What does thread 0 add when $h = 64$? Cell 64, which
# *another thread* has to have finished in the step before. Nothing says that it has.


# %%
@cuda.jit
def racy_block_sum_kernel(
    x,  # (n,)
    partial,  # (n_blocks,)
):
    cell = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    mine = float32(0.0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        mine += x[i]
    cell[t] = mine
    h = BLOCK // 2
    while h > 0:
        if t < h:
            cell[t] += cell[t + h]
        h //= 2
    if t == 0:
        partial[cuda.blockIdx.x] = cell[0]


N_BLOCKS = 64
ones = bt.ones((n,), bt.float32)
partial = bt.zeros((N_BLOCKS,), bt.float32)
launch(racy_block_sum_kernel, N_BLOCKS, BLOCK, ones, partial)
counted = partial.numpy().sum(dtype=np.float64)
print(f"without barriers: {n:,} ones add up to {counted:,.0f}")

# %% [markdown]
# The ones should add up to their number. What comes out instead depends on which thread runs first.
# A GPU does not let one choose; compiled for the CPU, the threads of a block can be run forwards or
# backwards. A kernel that is right does not care.


# %%
def sums_in_both_orders(kernel: object) -> list[float]:
    """Run on the CPU, whatever the target, with the threads of a block in either order."""
    sums = []
    for reverse in (False, True):
        per_block = np.zeros(N_BLOCKS, np.float32)
        order = cpu.Options(reverse=reverse)
        cpu.run(kernel, N_BLOCKS, BLOCK, np.ones(n, np.float32), per_block, options=order)
        sums.append(float(per_block.sum(dtype=np.float64)))
    return sums


forwards, backwards = sums_in_both_orders(racy_block_sum_kernel)
print(f"threads forwards {forwards:,.0f}, backwards {backwards:,.0f}: a race")
assert forwards != backwards

# %% [markdown]
# This is a **race**: two threads touch one cell, one of them writes, and nothing orders them. On a
# GPU the warps take turns as they like: the sum may be right a thousand times and wrong on the day
# that matters. A right answer proves nothing about a race; a wrong one is a gift.
#
# ## The barrier
# `cuda.syncthreads()` lets no thread of the block pass before all have arrived. One goes between
# each write and the reads that depend on it. It stands outside the `if`: a barrier that some
# threads never reach is waited for for ever.


# %%
@cuda.jit
def block_sum_kernel(
    x,  # (n,)
    partial,  # (n_blocks,)
):
    cell = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    # Load: a stride of the whole grid, so that neighbours read neighbours in every round.
    mine = float32(0.0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        mine += x[i]
    cell[t] = mine
    cuda.syncthreads()  # all cells are filled before any is read
    # Reduce.
    h = BLOCK // 2
    while h > 0:
        if t < h:
            cell[t] += cell[t + h]
        cuda.syncthreads()  # this step's sums are there before the next step adds them
        h //= 2
    # Store.
    if t == 0:
        partial[cuda.blockIdx.x] = cell[0]


def block_sum(values: bt.Tensor) -> bt.Tensor:
    """Two launches, one number a block and then one: blocks cannot wait for each other."""
    launch(block_sum_kernel, N_BLOCKS, BLOCK, values, partial)
    launch(block_sum_kernel, 1, BLOCK, partial, total)
    return total


assert block_sum(ones).item() == n
assert sums_in_both_orders(block_sum_kernel) == [n, n]
check("a tree in each block", block_sum(x).item())

# %% [markdown]
# The tree is also *more accurate*: one thread's running sum rounds a million times, each number
# here passes through a few hundred additions. And it is the same on every run: float addition is
# not associative, so a fixed order is worth having (adding with atomics, in whatever order the
# blocks finish, would not be).
#
# ## What it brought
# On a GPU one thread is one of a hundred thousand, and the tree puts all of them to work. Compiled
# for the CPU a thread is a turn of a loop, so that a single one idles nothing but the other cores:
# there the two lie close together.

# %%
tree_seconds = seconds(lambda: block_sum(x))
print(f"one thread {naive_seconds * 1e3:.3f} ms, tree {tree_seconds * 1e3:.3f} ms here ({TARGET})")

# %% [markdown]
# ## The same through blutrain
# `bt.sum` is this kernel with warp shuffles in place of most barriers (32 threads in step can hand
# each other registers), for any axes and dtypes. Read it in
# `blutrain/cuda_kernels/reduction/sum.py`.

# %%
check("bt.sum", bt.sum(x).item())

sizes = [1 << k for k in range(10, 21, 2)]
curves: dict[str, list[float]] = {"one thread": [], "tree": [], "bt.sum": []}
for size in sizes:
    part = x[:size]
    one = seconds(lambda p=part: launch(sum_by_one_thread_kernel, 1, BLOCK, p, total), repeats=3)
    curves["one thread"].append(one)
    curves["tree"].append(seconds(lambda p=part: block_sum(p)))
    curves["bt.sum"].append(seconds(lambda p=part: bt.sum(p)))

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for label, values in curves.items():
    axes.loglog(sizes, [v * 1e6 for v in values], marker="o", label=label)
axes.set(xlabel="numbers", ylabel="microseconds", title=f"summing, measured here ({TARGET})")
axes.legend()
save(figure, "01_sum")

# %% [markdown]
# ## Try
# 1. Move the barrier into the `if`. The CPU still adds up right. Run it with
#    `cpu.Options(check_barriers=True)`: what does the error say, and what would a GPU do?
# 2. Take `cell[t] = mine` without the first barrier: which sums survive?
# 3. `BLOCK = 96` breaks the tree even with barriers. Why? (Look at $h$ when it is odd.)
