"""Cost sets, and the places of the costs of ops and messages in them.

Most ops take the same time as others: those of one kind on one stage, say. So a run of a million
ops has a cost set of a few dozen numbers, one array:

    0 | durations | times on the wire | latencies

and every op and message has the place of its costs in it; place 0 is for what costs nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray, Int32Array, IntArray
from pipesim.schedules.program.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class CostIndex:
    """The places of the costs of ops and messages in a cost set.

    Parameters
    ----------
    duration, wire, latency
        Places of the costs of every op and of its message, arrays (ops,).
    messages
        An op whose message takes each of the latencies, array (latencies,).
    """

    duration: Int32Array
    wire: Int32Array
    latency: Int32Array
    messages: IntArray

    def cost_sets(self, durations: FloatArray, wire: FloatArray, latency: FloatArray) -> FloatArray:
        """Return the cost sets of runs as columns, array (costs, runs).

        Parameters
        ----------
        durations
            Durations of ops, array (runs, durations).
        wire, latency
            Times of the messages on the wire and latencies, arrays (runs, latencies).
        """
        nothing = np.zeros((len(durations), 1))
        on_wire = wire if self.wire.any() else wire[:, :0]
        return np.concatenate([nothing, durations, on_wire, latency], axis=1).T


def cost_index(
    program: Program, entry: npt.NDArray[np.integer], entries: int, *, wires: bool
) -> CostIndex:
    """Return the places of the costs of a program's ops and messages in a cost set.

    Parameters
    ----------
    program
        Made from a schedule, on stages whose messages are equally large for all micro-batches.
    entry, entries
        Number of each op's duration, array (ops,), and the number of durations.
    wires
        Whether any message takes time on the wire.
    """
    schedule = program.order
    sent = np.flatnonzero(program.source >= 0)
    direction = schedule.directions[schedule.microbatch[sent]].astype(np.int64)
    gradient = schedule.kind[sent] != Kind.F
    code = (direction * schedule.stages + schedule.stage[sent]) * 2 + gradient
    example = np.full(2 * schedule.stages * schedule.placement.directions, -1, dtype=np.int64)
    example[code] = sent
    there = example >= 0
    place = np.cumsum(there)[code]  # from 1 on
    messages = example[there]
    wire, latency = (np.zeros(len(schedule), dtype=np.int32) for _ in range(2))
    if wires:
        wire[sent] = entries + place
    latency[sent] = entries + wires * len(messages) + place
    return CostIndex((entry + 1).astype(np.int32), wire, latency, messages)
