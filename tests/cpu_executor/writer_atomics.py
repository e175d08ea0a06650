"""Atomics of random kernels."""

from __future__ import annotations

from cpu_executor.writer_expressions import Expressions


class Atomics(Expressions):
    """Writes atomic updates whose result no order of threads changes."""

    def histogram(self, context: str, depth: int) -> list[str]:
        """Atomics in shared memory."""
        return ["cuda.syncthreads()", "if t < 8:", "    hist[t] = 0", "cuda.syncthreads()",
                f"cuda.atomic.add(hist, {self.variable()} & 7, 1)", "cuda.syncthreads()",
                f"{self.variable()} += hist[t & 7]"]  # fmt: skip

    def counting(self, context: str, depth: int) -> list[str]:
        """Atomics of every kind in shared memory, whose result no order changes."""
        v, k = self.variable(), self.pick("t & 7", "a & 7", "lane & 3", "0")
        kind = self.pick("add", "sub", "max", "min", "and_", "or_", "xor", "inc", "dec", "cas",
                         "exch")  # fmt: skip
        array = "counts" if kind in ("inc", "dec") else "hist"
        call = {
            "inc": "cuda.atomic.inc(counts, KEY, uint32(11))",
            "dec": "cuda.atomic.dec(counts, KEY, uint32(13))",
            "cas": f"cuda.atomic.cas(hist, KEY, 3, {self.pick('9', 'n')})",
            "exch": "cuda.atomic.exch(hist, KEY, n)",
        }.get(kind, f"cuda.atomic.{kind}(hist, KEY, {v} & 127)")
        test = [f"if {self.test()}:"] if self.random.random() < 0.5 else ["if True:"]
        start = self.pick("3", "t", "85")
        return ["cuda.syncthreads()", "if t < 8:", f"    {array}[t] = {start}",
                "cuda.syncthreads()", *test, "    " + call.replace("KEY", k),
                "cuda.syncthreads()", f"{self.variable()} += {array}[t & 7] & 255"]  # fmt: skip

    def total(self, context: str, depth: int) -> list[str]:
        """Atomics in global memory, of all blocks; nobody reads what they give."""
        # One kind for each element, so that no order changes the result.
        v = self.variable()
        return [self.pick(
            f"cuda.atomic.add(total, {v} & 1, {v})", f"cuda.atomic.max(total, 2, {v})",
            f"cuda.atomic.min(total, 3 + (t & 1), -{v})", f"cuda.atomic.xor(total, 5, {v})",
            f"cuda.atomic.or_(total, 6, {v})", f"cuda.atomic.sub(total, (7,), {v})",
        )]  # fmt: skip
