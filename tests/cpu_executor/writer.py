"""Random kernels that are legal CUDA by construction.

They have no races, barriers are uniform in a block, shuffles uniform in a warp.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from cpu_executor.writer_atomics import Atomics
from cpu_executor.writer_reals import Reals

WARP = 32
GRIDS = ((2, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))
BLOCKS = (
    (64, 1, 1), (64, 1, 1), (128, 1, 1), (48, 1, 1), (16, 4, 1), (8, 4, 2), (32, 3, 1), (32, 2, 2),
)  # fmt: skip

_HEAD = """\
import math
from numba import cuda, float32, float64, int32, int64, uint32

F = 0xFFFFFFFF
FEW = 3


@cuda.jit(device=True)
def spread(v, k):
    w = v
    for h in range(k):
        w = (w + cuda.shfl_down_sync(F, w, 1 << (h % 5))) & 1023
    return w


@cuda.jit(device=True)
def pair(v, k):
    if v % 3 == 0:
        return v // 3, k
    if v % 3 == 1:
        return k, v
    return v + k, v - k


@cuda.jit(device=True)
def first(v, k):
    for h in range(k):
        v += 3
        if v % 4 == 0:
            return h
        if v % 7 == 5:
            continue
        v -= 1
    return k


@cuda.jit(device=True)
def meet(v, s, t):
    cuda.syncthreads()
    s[t] = v
    cuda.syncthreads()
    w = s[0]
    if w > 100:
        w -= 100
    cuda.syncthreads()
    return w + v


@cuda.jit(device=True)
def apply(op, v, k):
    p, q = op(v, k)
    return p + 2 * q


@cuda.jit
def kernel(x, n, y, z, w, total):
"""


class Writer(Reals, Atomics):
    """Writes one random kernel.

    A statement may stand in one of three contexts: "block" (all threads of the block are there),
    "warp" (all of the warp), "thread" (any).
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.block = self.random.choice(BLOCKS)
        self.grid = self.random.choice(GRIDS)
        self.n_threads = int(np.prod(self.block))
        self.has_warps = self.n_threads % WARP == 0
        # Warps that never meet each other: no barrier, no shared memory.
        self.apart = self.block[0] == WARP and self.random.random() < 0.7
        self.budget = self.random.randint(8, 24)
        self.names = 0

    def text(self) -> str:
        """The source of the module."""
        bx, by, _ = self.block
        place = {
            1: "cuda.threadIdx.x",
            2: f"cuda.threadIdx.y * {bx} + cuda.threadIdx.x",
            3: f"(cuda.threadIdx.z * {by} + cuda.threadIdx.y) * cuda.blockDim.x + cuda.threadIdx.x",
        }[1 + (by > 1) + (self.block[2] > 1)]
        lines = [
            "q = cuda.local.array(4, int64)",
            f"t = {place}",
            "lane = t % 32" if self.random.random() < 0.5 else "lane = t & 31",
            "warp = t // 32" if self.random.random() < 0.5 else "warp = t >> 5",
            f"block = cuda.blockIdx.{'xyz'[self.grid.index(2)]}",
            "u = 1", "v = 2", "i0 = 0",
            "a = x[t]", "b = t * 3", "c = b * 7 + lane", "g = a * 0.5",
            "for k in range(4):", "    q[k] = k * t",
            f"r = cuda.local.array(4, {self.pick('float32', 'float64')})",
            f"e = cuda.local.array(4, {self.pick('float32', 'float64')})",
            f"f = {self.pick('float32', 'float64')}(lane) / 32",
            "h = x[t] * 0.01",
            "for k in range(4):", "    r[k] = (x[(t + k) % 48] & 7) * 0.25", "    e[k] = 0.5",
        ]  # fmt: skip
        if not self.apart:
            n = self.n_threads
            shared = [f"s = cuda.shared.array({n}, int64)", "hist = cuda.shared.array(8, int32)",
                      "counts = cuda.shared.array(8, uint32)",
                      f"m = cuda.shared.array(({n}, 4), float32)"]  # fmt: skip
            lines = shared + lines
        elif self.random.random() < 0.5:
            lines += ["lane = cuda.threadIdx.x", "warp = cuda.threadIdx.y + cuda.threadIdx.z * 2"]
        if self.random.random() < 0.3:
            lines += ["z[block, t] = -1", "if t + block > 60 + n:", "    return"]
            lines += self.several("thread", 2, 6)
        else:
            lines += self.several("warp" if self.apart else "block", 0, 6)
        lines += [f"y[block, t, {k}] = {e}" for k, e in enumerate(
            ("a", "b", "c", "u * 16 + v", "i0", "int64(g * 2)", "q[1] + q[2]"))]  # fmt: skip
        lines += [f"w[block, t, {k}] = {e}" for k, e in enumerate(
            ("f", "h", "r[0] + r[3]", "e[0] + e[1] + e[2] + e[3]"))]  # fmt: skip
        return _HEAD + "\n".join("    " + line for line in lines) + "\n"

    def several(self, context: str, depth: int, n: int | None = None) -> list[str]:
        """Some statements."""
        out: list[str] = []
        for _ in range(n or self.random.randint(1, 3)):
            out += self.statement(context, depth)
        return out

    def nested(self, head: str, context: str, depth: int) -> list[str]:
        """A construct and its body."""
        return [head] + ["    " + line for line in self.several(context, depth + 1)]

    def statement(self, context: str, depth: int) -> list[str]:
        """One random statement, as lines."""
        self.budget -= 1
        kinds = [self.plain] * 4 + [self.calls] + [self.real] * 2 + [self.total]
        if context in ("block", "warp") and self.has_warps:
            kinds += [self.shuffle] * 2 + [self.warp_vote, self.lazy, self.real_shuffle]
        if context == "block":
            kinds += [self.exchange, self.block_vote, self.uniform, self.histogram, self.meeting]
            kinds += [self.counting, self.softmax]
        if depth < 3 and self.budget > 0:
            kinds += [self.nest] * 2
            kinds += [self.thread_if, self.thread_loop, self.strided]
            if context in ("block", "warp") and self.has_warps:
                kinds += [self.warp_if, self.warp_loop]
            if context == "block":
                kinds += [self.block_if, self.block_for, self.block_while] * 2
        return self.random.choice(kinds)(context, depth)

    # Statements ----------------------------------------------------------------------------------

    def plain(self, context: str, depth: int) -> list[str]:
        """Arithmetic."""
        v, w = self.variable(), self.variable()
        return [self.pick(
            f"{v} = ({self.value()}) & 1023",
            f"{v} += ({self.value()}) & 63",
            f"a, b = b, ({self.value()}) & 511",
            f"q[{self.pick('0', '1', '-1', 't % 4', 'n % 4')}] = {v}",
            f"{v} = q[{w} & 3]",
            f"g = float64({v}) * 0.5 + float64({w})",
            f"q[1], q[2] = q[2], {v}",
        )]  # fmt: skip

    def calls(self, context: str, depth: int) -> list[str]:
        """Device functions in which threads do not meet."""
        v, k = self.variable(), self.random.randint(1, 5)
        return [self.pick(
            f"a, b = pair({v}, {k})",
            f"{v} = first({self.variable()}, {k}) + {k}",
            f"{v} = apply(pair, {v}, {k}) & 1023",
            f"{v} = (q[0] + first({v}, n)) & 255",
            f"{v} = (first({v}, 3) if {self.test()} else b) & 127",
        )]  # fmt: skip

    def shuffle(self, context: str, depth: int) -> list[str]:
        """A value from another lane."""
        v, w, k = self.variable(), self.variable(), self.pick("1", "2", "4", "8", "16")
        shuffled = self.pick(
            f"cuda.shfl_xor_sync(F, {w}, {k})", f"cuda.shfl_down_sync(F, {w}, {k})",
            f"cuda.shfl_up_sync(F, {w}, {k})",
            f"cuda.shfl_sync(F, {w}, {self.pick('0', '7', 'n')})",
            f"cuda.shfl_sync(F, {w}, (lane * 5) % 32)", f"spread({w}, {self.random.randint(1, 4)})",
        )  # fmt: skip
        return [f"{v} = ({self.pick(v, w, 'u')} + {shuffled}) & 1023"]

    def lazy(self, context: str, depth: int) -> list[str]:
        """A shuffle that is evaluated only sometimes, alike in a warp."""
        v, test = self.variable(), self.pick("n > 2", "warp == 0")
        return [self.pick(
            f"{v} = (spread(a, 2) if {test} else b) & 511",
            f"{v} = 1 if {test} and spread(b, 1) > 40 else {v}",
        )]  # fmt: skip

    def warp_vote(self, context: str, depth: int) -> list[str]:
        """A vote in the warp."""
        v, test = self.variable(), self.test()
        return [self.pick(
            f"{v} += cuda.popc(cuda.ballot_sync(F, {test}))",
            f"{v} += 5 if cuda.any_sync(F, {test}) else 0",
            f"{v} = {v} + 1 if cuda.all_sync(F, {test}) else {v} + 2",
        )]  # fmt: skip

    def exchange(self, context: str, depth: int) -> list[str]:
        """A value through shared memory."""
        k = self.random.randint(1, self.n_threads - 1)
        return ["cuda.syncthreads()", f"s[t] = {self.variable()}", "cuda.syncthreads()",
                f"{self.variable()} = s[(t + {k}) % {self.n_threads}] & 1023"]  # fmt: skip

    def meeting(self, context: str, depth: int) -> list[str]:
        """A device function with barriers."""
        v = self.variable()
        return [f"{v} = ({self.pick('s[t] * 0', 'u', 'q[2]')} + meet({v}, s, t)) & 1023"]

    def block_vote(self, context: str, depth: int) -> list[str]:
        """A vote of the block."""
        kind, target = self.pick("count", "or", "and"), self.pick("u", "v", "a")
        return [
            f"{target} = cuda.syncthreads_{kind}({self.pick('a > c', 't % 3 == 0', 'b < 900')})"
        ]

    def uniform(self, context: str, depth: int) -> list[str]:
        """Arithmetic that is the same in a block."""
        return [self.pick("u += 1", "v = (u * 3 + n) & 7", "u = (v + 2) & 15", "v = x[3] & 7")]

    def thread_if(self, context: str, depth: int) -> list[str]:
        """A branch that differs between threads."""
        out = self.nested(f"if {self.test()}:", "thread", depth)
        if self.random.random() < 0.5:
            out += self.nested("else:", "thread", depth)
        return out

    def thread_loop(self, context: str, depth: int) -> list[str]:
        """A loop whose length differs between threads."""
        if self.random.random() < 0.5:
            w = self.fresh("w")
            out = [f"{w} = {self.pick('a & 7', 't % 5', '3')}", f"while {w} > 0:", f"    {w} -= 1"]
        else:
            j = self.fresh("j")
            out = [f"for {j} in range({self.pick('3', 't % 4', 'n', '5, 1, -2', '1, n, 2')}):",
                   f"    c = (c + {j}) & 1023"]  # fmt: skip
        if self.random.random() < 0.4:
            out += [f"    if {self.test()}:", f"        {self.pick('break', 'continue')}"]
        return out + ["    " + line for line in self.several("thread", depth + 1)]

    def strided(self, context: str, depth: int) -> list[str]:
        """A loop with the block's or the warp's stride, over a row."""
        j, n = self.fresh("j"), self.n_threads
        start = self.pick("t", "t + 2", "u + t") if context == "block" else "t"
        step = self.pick(str(n), "FEW * 20", f"{n} * cuda.gridDim.x")
        if self.has_warps and self.random.random() < 0.4:
            start, step = "lane", "32"
        body = [f"a = (a + x[{j} % {n}] * {j}) & 1023",
                self.pick(f"c += {j} & 3", f"if x[{j} % {n}] > 50:\n        b += 1",
                          f"for o in range(2):\n        q[o] += {j}")]  # fmt: skip
        if start == "t" and context != "thread" and step == str(n):
            body.append(f"z[block, {j}] = {self.pick('a', 'c')} + {j}")
        lines = [f"for {j} in range({start}, {self.pick('150', 'n * 31', '20')}, {step}):"]
        for part in body:
            lines += ["    " + line for line in part.split("\n")]
        return [line for part in lines for line in part.split("\n")]

    def block_if(self, context: str, depth: int) -> list[str]:
        """A branch that is the same in a block."""
        out = self.nested(f"if {self.block_test()}:", context, depth)
        if self.random.random() < 0.5:
            out += self.nested("else:", context, depth)
        return out

    def jump(self, tests: Sequence[str], context: str, depth: int) -> list[str]:
        """A break or continue, and something after it."""
        if self.random.random() < 0.6:
            return []
        out = [f"    if {self.pick(*tests)}:", f"        {self.pick('break', 'continue')}"]
        return out + ["    " + line for line in self.statement(context, depth + 1)]

    def block_for(self, context: str, depth: int) -> list[str]:
        """A loop that is the same in a block."""
        out = self.nested(
            f"for i0 in range({self.pick('2', 'n % 3', 'n', '3, 0, -1')}):", context, depth
        )
        return out + self.jump([self.block_test()], context, depth)

    def block_while(self, context: str, depth: int) -> list[str]:
        """A while loop that is the same in a block."""
        w = self.fresh("w")
        out = [f"{w} = {self.random.randint(1, 3)}", f"while {w} > 0:", f"    {w} -= 1"]
        out += ["    " + line for line in self.several(context, depth + 1)]
        return out + self.jump([self.block_test()], context, depth)

    def warp_if(self, context: str, depth: int) -> list[str]:
        """A branch that is the same in a warp."""
        out = self.nested(
            f"if {self.pick('warp == 0', 'warp == 1', 'warp + n > 3')}:", "warp", depth
        )
        if self.random.random() < 0.4:
            out += self.nested("else:", "warp", depth)
        return out

    def warp_loop(self, context: str, depth: int) -> list[str]:
        """A loop whose length differs between warps."""
        i = self.fresh("i")
        head = f"for {i} in range(warp, {self.pick('3', 'n')}, {self.pick('1', '2')}):"
        return self.nested(head, "warp", depth) + self.jump([f"warp + {i} > 1"], "warp", depth)
