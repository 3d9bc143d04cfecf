"""Event graphs of the last few programs, so that one that runs again and again is built once."""

from collections import OrderedDict

from pipesim.base.types import BoolArray
from pipesim.engine.event_graph import EventGraph, event_graph
from pipesim.schedules.program.program import Program

MOST_NODES = 4_000_000  # of all graphs that are kept

_kept: OrderedDict[tuple[object, ...], EventGraph] = OrderedDict()


def cached_graph(
    program: Program, *, queue_capacity: int | None, meets: BoolArray, wires: bool
) -> EventGraph:
    """Return `event_graph` of a program, kept from last time where nothing is different.

    A program is known by its schedule and its protocol: lowering the same one again gives the
    same instructions.
    """
    meeting = None if meets.all() else meets.tobytes()
    key = (id(program.schedule), program.protocol, queue_capacity, meeting, wires)
    graph = _kept.get(key)
    # The kept graph holds its schedule, so that no other can have got the same id.
    if graph is not None and graph.program.schedule is program.schedule:
        _kept.move_to_end(key)
        return graph
    graph = event_graph(program, queue_capacity=queue_capacity, meets=meets, wires=wires)
    _kept[key] = graph
    while sum(map(len, _kept.values())) > MOST_NODES and len(_kept) > 1:
        _kept.popitem(last=False)
    if len(graph) > MOST_NODES:
        del _kept[key]
    return graph
