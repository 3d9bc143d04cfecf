"""A compiled look at very large orders: are they right, and what takes whose output?"""

import numpy as np
from numba import njit

from pipesim.base.types import Int8Array, Int32Array, IntArray


@njit(cache=True)
def check_and_connect(
    kind: Int8Array,
    stage: Int32Array,
    unit: Int32Array,
    offsets: IntArray,
    rank_table: Int32Array,
) -> tuple[bool, Int32Array, Int32Array, Int32Array]:
    """Return whether an order is right; its consumers, producers and local inputs, arrays (ops,).

    What is right: every op within range and on its rank, none twice, F before R, R before B or I,
    I before W, everything complete. Where it is not, the arrays mean nothing. `rank_table` is the
    rank of every stage and unit, array (stages, units). Kinds count F, B, I, W, R from 0.
    """
    stages, units = rank_table.shape
    ops = len(kind)
    number = np.full((5, stages, units), -1, np.int32)
    consumer, producer = np.full(ops, -1, np.int32), np.full(ops, -1, np.int32)
    local = np.full(ops, -1, np.int32)
    count = np.zeros(5, np.int64)
    for rank in range(len(offsets) - 1):
        for op in range(offsets[rank], offsets[rank + 1]):
            k, s, u = kind[op], stage[op], unit[op]
            if not (0 <= k < 5 and 0 <= s < stages and 0 <= u < units):
                return False, consumer, producer, local
            if rank_table[s, u] != rank or number[k, s, u] >= 0:
                return False, consumer, producer, local
            if k == 3:
                local[op] = number[2, s, u]
            elif k == 4:
                local[op] = number[0, s, u]
                if max(number[1, s, u], number[2, s, u]) >= 0:  # the backward is over
                    return False, consumer, producer, local
            elif k > 0:
                local[op] = number[4, s, u] if number[4, s, u] >= 0 else number[0, s, u]
                if number[3 - k, s, u] >= 0:  # whole and split
                    return False, consumer, producer, local
            if k > 0 and local[op] < 0:
                return False, consumer, producer, local
            number[k, s, u] = op
            count[k] += 1
    backwards = count[1] + count[2]
    if count[0] != stages * units or count[2] != count[3] or backwards not in (0, count[0]):
        return False, consumer, producer, local
    if count[4] and not backwards:
        return False, consumer, producer, local
    for op in range(ops):
        k, s, u = kind[op], stage[op], unit[op]
        taker = -1
        if k == 0 and s + 1 < stages:
            taker = number[0, s + 1, u]
        elif (k == 1 or k == 2) and s > 0:
            taker = max(number[1, s - 1, u], number[2, s - 1, u])
        if taker >= 0:
            consumer[op] = taker
            producer[taker] = op
    return True, consumer, producer, local
