"""A compiled check of very large orders, which also finds their consumers and producers."""

import numpy as np
from numba import njit

from pipesim.base.ops import KINDS, B, F, I, R, W
from pipesim.base.types import Int8Array, Int32Array, IntArray


@njit(cache=True)
def check_and_connect(
    kind: Int8Array,
    stage: Int32Array,
    unit: Int32Array,
    offsets: IntArray,
    rank_table: Int32Array,
) -> tuple[bool, Int32Array, Int32Array, Int32Array]:
    """Return whether an order is valid, and consumers, producers, local inputs, arrays (ops,).

    Valid: every op within range and on its rank, none twice, F before R, R before B or I, I before
    W, everything complete. If it is not, the arrays mean nothing. `rank_table` is the rank of every
    stage and unit, array (stages, units).
    """
    stages, units = rank_table.shape
    ops = len(kind)
    number = np.full((KINDS, stages, units), -1, np.int32)
    consumer, producer = np.full(ops, -1, np.int32), np.full(ops, -1, np.int32)
    local = np.full(ops, -1, np.int32)
    count = np.zeros(KINDS, np.int64)
    for rank in range(len(offsets) - 1):
        for op in range(offsets[rank], offsets[rank + 1]):
            k, s, u = kind[op], stage[op], unit[op]
            if not (0 <= k < KINDS and 0 <= s < stages and 0 <= u < units):
                return False, consumer, producer, local
            if rank_table[s, u] != rank or number[k, s, u] >= 0:
                return False, consumer, producer, local
            if k == W:
                local[op] = number[I, s, u]
            elif k == R:
                local[op] = number[F, s, u]
                if max(number[B, s, u], number[I, s, u]) >= 0:  # the backward is over
                    return False, consumer, producer, local
            elif k != F:
                local[op] = number[R, s, u] if number[R, s, u] >= 0 else number[F, s, u]
                if number[I if k == B else B, s, u] >= 0:  # whole and split
                    return False, consumer, producer, local
            if k != F and local[op] < 0:
                return False, consumer, producer, local
            number[k, s, u] = op
            count[k] += 1
    backwards = count[B] + count[I]
    if count[F] != stages * units or count[I] != count[W] or backwards not in (0, count[F]):
        return False, consumer, producer, local
    if count[R] and not backwards:
        return False, consumer, producer, local
    for op in range(ops):
        k, s, u = kind[op], stage[op], unit[op]
        taker = -1
        if k == F and s + 1 < stages:
            taker = number[F, s + 1, u]
        elif k in (B, I) and s > 0:
            taker = max(number[B, s - 1, u], number[I, s - 1, u])
        if taker >= 0:
            consumer[op] = taker
            producer[taker] = op
    return True, consumer, producer, local
