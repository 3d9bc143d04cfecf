"""An independent answer: when every op runs, by recursion over what each must wait for.

It shares nothing with the engine but the order and the costs, and is written for being obviously
right, not for being fast.
"""

from collections import defaultdict

from pipesim.ops import Kind


class Deadlock(Exception):
    pass


def longest_path(schedule, pipe, capacity=None):
    """Return {op: (start, end)}."""
    rank_of = schedule.placement.rank_of
    orders = [schedule.order(rank) for rank in range(schedule.ranks)]
    everything = {op for order in orders for op in order}
    before = {}
    messages = defaultdict(list)  # (source rank, target rank) -> ops, in the source's order
    produced, consumed = defaultdict(list), defaultdict(list)  # (stage, stage) -> ops in order

    def feeder(op):
        stage = op.stage - 1 if op.kind == Kind.F else op.stage + 1
        kinds = {Kind.F: (Kind.F,), Kind.W: ()}.get(op.kind, (Kind.B, Kind.I))
        found = [op._replace(stage=stage, kind=k) for k in kinds]
        return next((f for f in found if f in everything), None)

    def own_input(op):
        kind = {Kind.B: Kind.F, Kind.I: Kind.F, Kind.W: Kind.I}.get(op.kind)
        return None if kind is None else op._replace(kind=kind)

    eater = {feeder(op): op for op in everything if feeder(op) is not None}
    for rank, order in enumerate(orders):
        for previous, op in zip([None, *order[:-1]], order, strict=True):
            before[op] = previous
            if op in eater and rank_of[eater[op].stage] != rank:
                messages[rank, rank_of[eater[op].stage]].append(op)
                produced[op.stage, eater[op].stage].append(op)
            source = feeder(op)
            if source is not None and rank_of[source.stage] != rank:
                consumed[source.stage, op.stage].append(op)

    def cost(op):
        value = pipe.stages[op.stage].cost(op.kind)
        value = float(value[op.microbatch]) if value.ndim else float(value)
        device = pipe.devices[rank_of[op.stage]]
        return value / device.speed + device.overhead_ms

    starts, busy = {}, set()

    def start(op):
        if op not in starts:
            if op in busy:
                raise Deadlock(str(op))
            busy.add(op)
            starts[op] = max(waits(op), default=0.0)
            busy.discard(op)
        return starts[op]

    def end(op):
        return start(op) + cost(op)

    def waits(op):
        if before[op] is not None:
            yield end(before[op])
        if own_input(op) is not None:
            yield end(own_input(op))
        if feeder(op) is not None:
            yield arrival(feeder(op))
        if capacity is not None and op in eater:
            queue = op.stage, eater[op].stage
            if queue in produced:
                number = produced[queue].index(op)
                if number >= capacity:
                    yield start(consumed[queue][number - capacity])

    def departure(op):
        queue = messages[rank_of[op.stage], rank_of[eater[op].stage]]
        number = queue.index(op)
        if number == 0:
            return end(op)
        return max(end(op), departure(queue[number - 1]) + wire(queue[number - 1]))

    def link(op):
        return pipe.link(rank_of[op.stage], rank_of[eater[op].stage])

    def wire(op):
        boundary = min(op.stage, eater[op].stage)
        return link(op).wire_ms(pipe.stages[boundary].output_bytes)

    def arrival(op):
        if rank_of[op.stage] == rank_of[eater[op].stage]:
            return end(op)
        return (departure(op) + wire(op)) + link(op).latency_ms

    return {op: (start(op), end(op)) for order in orders for op in order}
