"""Names and expressions of random kernels."""

from __future__ import annotations

import random


class Expressions:
    """Writes expressions.

    Attributes:
        random: where all choices come from.
        n_threads: threads of a block.
        names: how many fresh names there are.
    """

    random: random.Random
    n_threads: int
    names: int

    def pick(self, *choices: str) -> str:
        """One of several."""
        return self.random.choice(choices)

    def fresh(self, prefix: str) -> str:
        """A new name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def variable(self) -> str:
        """A variable that differs between threads."""
        return self.pick("a", "b", "c")

    def value(self, depth: int = 0) -> str:
        """An integer expression."""
        if depth > 2 or self.random.random() < 0.3:
            plain = ("a", "b", "c", "t", "lane", "u", "i0", "3", "n", "FEW", "int64(g)")
            return self.pick(*plain, "x[-1]", "q[a & 3]", "min(a, b)", "max(c, 5)", "x[b % 7]")
        if self.random.random() < 0.1:
            return f"({self.value(depth + 1)} if {self.test()} else {self.value(depth + 1)})"
        return f"({self.value(depth + 1)} {self.pick(*'+-*^&')} {self.value(depth + 1)})"

    def test(self) -> str:
        """A condition that differs between threads."""
        simple = ("t % 3 == 0", "a > c", "(a & 1) == 0", "t < n", "lane > 7", "b % 5 < 2")
        both = ("t % 2 == 0 and a > 9", "not (t > 9 or b < 20)", "t + 3 < n * 9")
        return self.pick(*simple, *both)

    def block_test(self) -> str:
        """A condition that is the same in a block."""
        return self.pick("n > 2", "u % 2 == 0", "v > 1", "n % 2 == 1", "x[0] > 50", "block == 0",
                         f"x[u % {self.n_threads}] % 2 == v % 2")  # fmt: skip
