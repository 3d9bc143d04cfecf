"""Which ops and messages cost the same whatever the costs are, so that a cost set is short.

Of stages whose costs do not vary over micro-batches, all ops of one kind on one stage take the
same time: a run of a million ops has a cost set of a few dozen numbers. A cost set is one array:

    0 | durations | times on the wire | latencies

and every op and message bears the place of its costs in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.arrays import FloatArray, Int32Array, IntArray
from pipesim.dataflow import second_of_pair
from pipesim.engine.workload import durations_of, messages_of
from pipesim.pipeline import Pipeline
from pipesim.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class CostIndex:
    """The place of every cost in a cost set.

    Parameters
    ----------
    duration, wire, latency
        Places of the costs of every op and of its message, arrays (ops,); 0 where there is none.
    ops, messages
        One op, by its number, for each of the durations, and one for each kind of message.
    wires
        Whether there are times on the wire; without, their places are all 0.
    """

    duration: Int32Array
    wire: Int32Array
    latency: Int32Array
    ops: IntArray
    messages: IntArray
    wires: bool

    def __len__(self) -> int:
        return 1 + len(self.ops) + (1 + self.wires) * len(self.messages)

    def cost_sets(self, program: Program, pipes: Sequence[Pipeline]) -> FloatArray:
        """Return the cost sets of some pipelines, array (costs, pipelines)."""
        sets = np.zeros((len(self), len(pipes)))
        ops, messages = len(self.ops), len(self.messages)
        for column, pipe in enumerate(pipes):
            sets[1 : 1 + ops, column] = durations_of(program.order, pipe, self.ops)
            if messages:
                wire, latency = messages_of(program, pipe, self.messages)
                sets[-messages:, column] = latency
                if self.wires:
                    sets[1 + ops : 1 + ops + messages, column] = wire
        return sets


def cost_index(program: Program, *, varying: bool, wires: bool) -> CostIndex:
    """Return where the costs of a program's ops and messages stand in a cost set.

    Parameters
    ----------
    program
        Made from a schedule.
    varying
        Whether costs vary over micro-batches.
    wires
        Whether any link has a bandwidth.
    """
    schedule = program.order
    direction = schedule.directions[schedule.microbatch].astype(np.int64)
    code = (direction * schedule.stages + schedule.stage) * 4 + schedule.kind
    if schedule.slices > 1:
        code = code * schedule.slices + schedule.slice
    if varying:
        code = code * schedule.microbatches + schedule.microbatch
    second = np.flatnonzero(second_of_pair(schedule))
    if second.size:  # a pair's two ops together
        both, beyond = np.stack([code[second - 1], code[second]]), code.max() + 1
        _, pair = np.unique(both, axis=1, return_inverse=True)
        code[second] = code[second - 1] = beyond + pair.ravel()
    duration, ops = _numbered(code)
    sent = np.flatnonzero(program.source >= 0)
    gradient = schedule.kind[sent] != 0
    way = direction[sent] * schedule.stages + schedule.stage[sent]
    places, messages = _numbered(way * 2 + gradient)
    wire, latency = (np.zeros(len(schedule), dtype=np.int32) for _ in range(2))
    if wires:
        wire[sent] = 1 + len(ops) + places
    latency[sent] = 1 + len(ops) + wires * len(messages) + places
    return CostIndex(duration + np.int32(1), wire, latency, ops, sent[messages], wires)


def _numbered(code: IntArray) -> tuple[Int32Array, IntArray]:
    """Return a number for every code, from 0 on without gaps; and the place of one of each."""
    if not code.size:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    example = np.full(int(code.max()) + 1, -1, dtype=np.int64)
    example[code] = np.arange(len(code))
    there = example >= 0
    number = np.cumsum(there, dtype=np.int32) - np.int32(1)
    return number[code], example[there]
