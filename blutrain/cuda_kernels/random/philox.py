"""Philox-4x32-10: random numbers as a function of a key and a counter.

Ten rounds of two 32 x 32 → 64 bit products turn (counter, key) into four random words; there is no
state, so any thread can make any number. The same (seed, counter) gives the same words on every
target. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, uint32, uint64

M0 = 0xD2511F53
M1 = 0xCD9E8D57
W0 = 0x9E3779B9
W1 = 0xBB67AE85
LOW = 0xFFFFFFFF


@cuda.jit(device=True)
def philox_4x32(counter, seed):
    """Four random 32-bit words.

    Args:
        counter: int64 or uint64; the two high words of Philox's 128-bit counter are 0.
        seed: int64 or uint64, the key.
    """
    c0 = uint64(counter) & uint64(LOW)
    c1 = uint64(counter) >> uint64(32)
    c2 = uint64(0)
    c3 = uint64(0)
    k0 = uint64(seed) & uint64(LOW)
    k1 = uint64(seed) >> uint64(32)
    for _ in range(10):
        p0 = uint64(M0) * c0
        p1 = uint64(M1) * c2
        c0 = (p1 >> uint64(32)) ^ c1 ^ k0
        c2 = (p0 >> uint64(32)) ^ c3 ^ k1
        c1 = p1 & uint64(LOW)
        c3 = p0 & uint64(LOW)
        k0 = (k0 + uint64(W0)) & uint64(LOW)
        k1 = (k1 + uint64(W1)) & uint64(LOW)
    return uint32(c0), uint32(c1), uint32(c2), uint32(c3)


@cuda.jit(device=True)
def uniform(word):
    """A float32 in [0, 1) from a random word: its upper 24 bits, so that every value is exact."""
    return float32(uint32(word) >> uint32(8)) * float32(5.9604644775390625e-08)  # 2 ** -24


def philox_reference(counter: int, seed: int, n: int) -> np.ndarray[Any, Any]:
    """The words of `n` counters from `counter` on, in plain Python integers: (n, 4) uint32."""
    out = np.empty((n, 4), np.uint32)
    for row in range(n):
        c = [(counter + row) & LOW, (counter + row) >> 32, 0, 0]
        k0, k1 = seed & LOW, seed >> 32
        for _ in range(10):
            p0, p1 = M0 * c[0], M1 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & LOW, (p0 >> 32) ^ c[3] ^ k1, p0 & LOW]
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        out[row] = c
    return out
