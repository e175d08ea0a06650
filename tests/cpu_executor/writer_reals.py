"""Floating-point statements of random kernels.

All numbers are from 0 to 2, and no operation magnifies an error much, so that float32 in the kernel
and float64 in the interpreter stay near each other. No decision hangs on them.
"""

from __future__ import annotations

from cpu_executor.writer_expressions import Expressions


class Reals(Expressions):
    """Writes statements about `f`, `h` and the local arrays `r` and `e`."""

    def floating(self, depth: int = 0) -> str:
        """A floating-point number from 0 to 2; one that forgets its operands' rounding errors."""
        if depth > 2 or self.random.random() < 0.2:
            return self.pick("f", "h", "r[0]", "r[3]", "e[1]", "0.5", "(a & 7) * 0.25", "r[t & 3]")
        x, y = self.floating(depth + 1), self.floating(depth + 1)
        return self.pick(
            f"math.exp(-({x}))", f"math.sqrt({x} + 1)", f"abs({x} - {y})", f"max({x}, {y})",
            f"min({x}, {y})", f"cuda.fma({x}, 0.25, {y} * 0.5)", f"math.log1p({x})",
            f"math.tanh({x})", f"(math.sin({x}) + 1)", f"(math.cos({x}) + 1)",
            f"({x} + {y}) * 0.5", f"({x} * {y}) * 0.5", f"{x} / ({y} + 1)",
            f"math.floor(a * 0.01 + 0.005 - (a // 100)) + {x}", f"math.fabs({x} - 1)",
            f"({x} if {self.test()} else {y})",
        )  # fmt: skip

    def real(self, context: str, depth: int) -> list[str]:
        """Arithmetic of floating-point numbers."""
        target = self.pick("f", "h", "r[0]", "r[t % 4]", "e[1]", "r[-1]")
        return [self.pick(f"{target} = {self.floating()}",
                          f"{target} = {target} * 0.5 + ({self.floating()}) * 0.5")]  # fmt: skip

    def real_shuffle(self, context: str, depth: int) -> list[str]:
        """A floating-point value from another lane."""
        kind, k = self.pick("xor", "down", "up"), self.pick("1", "4", "16")
        v = self.pick("f", "h")
        return [f"{v} = ({v} + cuda.shfl_{kind}_sync(F, {v}, {k})) * 0.5"]

    def nest(self, context: str, depth: int) -> list[str]:
        """A loop with a function of `math` before an inner loop: one that may be split."""
        j, p, d = self.fresh("j"), self.fresh("p"), self.fresh("d")
        turns = self.pick("4", "4", "3", "n", "1, 4")
        head = [f"for {j} in range({turns}):"] if self.random.random() < 0.8 else [
            f"for {j} in range(t & 3):"]  # fmt: skip
        source = self.pick("r", "r", "e")
        function = self.pick("exp", "exp", "tanh", "log1p")
        sign = "-" if function == "exp" else ""
        body = [f"{p} = math.{function}({sign}{source}[{j} & 3])"]
        body += [self.pick(f"f = f * 0.5 + {p} * 0.25", f"{p} += {self.pick('f', 'h')} * 0.1",
                           f"h = max(h, {p})", f"r[{j} & 3] = {p}", f"c = (c + {j}) & 1023",
                           f"if {self.test()}:\n    {p} = 0.25")]  # fmt: skip
        other = self.pick("r", "r", "e", "x")
        index = f"({j} + {d}) & 3"
        term = f"{other}[{index}]" if other != "x" else f"(x[{index}] & 1)"
        body += [f"for {d} in range({self.pick('4', '4', 'n & 3')}):",
                 f"    e[{d}] = e[{d}] * 0.5 + {p} * {term} * 0.25"]  # fmt: skip
        if self.random.random() < 0.2:
            body += [f"    if {self.test()}:", f"        {self.pick('break', 'continue', 'a = 7')}",
                     f"    b = (b + {d}) & 63"]  # fmt: skip
        if self.random.random() < 0.15:
            body += [self.pick("f *= 0.5", f"u = {j}" if context == "block" else "c = b")]
        lines = [line for part in body for line in part.split("\n")]
        return head + ["    " + line for line in lines]

    def softmax(self, context: str, depth: int) -> list[str]:
        """A product with a row of probabilities, over rows in shared memory."""
        k = self.random.randint(0, self.n_threads - 4)
        return ["cuda.syncthreads()", "for k in range(4):", "    m[t, k] = r[k]",
                "cuda.syncthreads()", "h = 0.0", "for k in range(4):", "    e[k] *= 0.125",
                "for j in range(4):", f"    p = math.exp(-m[{k} + j, j] - f)", "    h += p * 0.25",
                "    for d in range(4):", f"        e[d] += p * m[{k} + j, d] * 0.125"]  # fmt: skip
