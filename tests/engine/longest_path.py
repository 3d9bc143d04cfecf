"""An independent answer: when every op runs, by recursion over what each must wait for.

It shares nothing with the engine but the order and the costs, and is written for being obviously
right, not for being fast.
"""

from collections import defaultdict

from pipesim.base.ops import Kind


class Deadlock(Exception):
    pass


def longest_path(schedule, pipe, capacity=None):
    """Return {op: (start, end)}."""
    orders = [schedule.order(rank) for rank in range(schedule.ranks)]
    rank_of = {op: rank for rank, order in enumerate(orders) for op in order}
    partner = pairs_of(schedule)
    before = {}
    messages = defaultdict(list)  # (source rank, target rank) -> ops, in the source's order
    produced, consumed = defaultdict(list), defaultdict(list)  # boundary -> ops in order

    def feeder(op):
        stage = op.stage - 1 if op.kind == Kind.F else op.stage + 1
        kinds = {Kind.F: (Kind.F,), Kind.W: (), Kind.R: ()}.get(op.kind, (Kind.B, Kind.I))
        found = [op._replace(stage=stage, kind=k) for k in kinds]
        return next((f for f in found if f in rank_of), None)

    def own_input(op):
        kinds = {Kind.B: (Kind.R, Kind.F), Kind.W: (Kind.I,), Kind.R: (Kind.F,)}
        kinds[Kind.I] = kinds[Kind.B]
        found = [op._replace(kind=kind) for kind in kinds.get(op.kind, ())]
        return next((f for f in found if f in rank_of), None)

    def boundary(source, target):
        return source.stage, target.stage, int(schedule.directions[source.microbatch])

    eater = {feeder(op): op for op in rank_of if feeder(op) is not None}
    for order in orders:
        previous = None
        for op in order:
            if partner.get(op) == previous and previous is not None:
                before[op] = before[previous]
            else:
                before[op] = previous
            previous = op
            if op in eater and rank_of[eater[op]] != rank_of[op]:
                messages[rank_of[op], rank_of[eater[op]]].append(op)
                produced[boundary(op, eater[op])].append(op)
            source = feeder(op)
            if source is not None and rank_of[source] != rank_of[op]:
                consumed[boundary(source, op)].append(op)

    def value(op):
        stage = pipe.stages[op.stage]
        fields = {Kind.F: ["forward_ms"], Kind.R: ["recompute_ms"], Kind.W: ["weight_grad_ms"]}
        fields[Kind.I] = ["input_grad_ms"]
        if op.kind in (Kind.B, Kind.I) and not schedule.separate_recompute:
            fields[Kind.I].append("recompute_ms")
        whole = stage.backward_ms is not None
        fields[Kind.B] = ["backward_ms", *fields[Kind.I][1:]] if whole else fields[Kind.I]
        parts = [*fields[op.kind], *(["weight_grad_ms"] if op.kind == Kind.B and not whole else [])]
        total = 0.0
        for name in parts:
            cost = getattr(stage, name)
            total += cost[op.microbatch] if isinstance(cost, tuple) else cost
        return float(total)

    def cost(op):
        device = pipe.devices[rank_of[op]]
        if op in partner:
            forward = op if op.kind == Kind.F else partner[op]
            own = pipe.stages[forward.stage].overlap_ms
            first, second = sorted((op, partner[op]), key=place.get)
            both = value(first) + value(second)
            return (pipe.overlap_factor * both if own is None else own) / device.speed + (
                device.overhead_ms
            )
        share = schedule.fractions[op.slice] if schedule.slices > 1 else 1.0
        if op.kind == Kind.R and value(op) == 0:
            return 0.0  # nothing to rebuild: nothing is run
        return value(op) * share / device.speed + device.overhead_ms

    place = {op: number for order in orders for number, op in enumerate(order)}
    starts, busy = {}, set()

    def start(op):
        group = (op, partner[op]) if op in partner else (op,)
        if op not in starts:
            if op in busy:
                raise Deadlock(str(op))
            busy.update(group)
            begin = max((t for member in group for t in waits(member)), default=0.0)
            for member in group:
                starts[member] = begin
            busy.difference_update(group)
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
            queue = boundary(op, eater[op])
            if queue in produced:
                number = produced[queue].index(op)
                if number >= capacity:
                    yield start(consumed[queue][number - capacity])

    def departure(op):
        queue = messages[rank_of[op], rank_of[eater[op]]]
        number = queue.index(op)
        if number == 0:
            return end(op)
        return max(end(op), departure(queue[number - 1]) + wire(queue[number - 1]))

    def link(op):
        return pipe.link(rank_of[op], rank_of[eater[op]])

    def wire(op):
        sender = min(op.stage, eater[op].stage)
        return link(op).wire_ms(pipe.stages[sender].output_bytes / schedule.slices)

    def arrival(op):
        if rank_of[op] == rank_of[eater[op]]:
            return end(op)
        return (departure(op) + wire(op)) + link(op).latency_ms

    return {op: (start(op), end(op)) for order in orders for op in order}


def pairs_of(schedule):
    """Return the partner of each op of an overlapped pair."""
    members = defaultdict(list)
    for number, group in enumerate(schedule.group.tolist()):
        if group >= 0:
            members[group].append(schedule.op(number))
    return {a: b for pair in members.values() for a, b in (pair, pair[::-1])}
