"""An independent answer for programs: when every op runs, by recursion over instruction texts.

It reads the instructions as they print, `0F0`, `0SEND_F0&1RECV_B2`, and shares nothing with the
engine or the event graph but the costs of ops and messages.
"""

import re
import sys
from collections import defaultdict

from tests.engine.longest_path import Deadlock

TEXT = re.compile(r"(\d+)(SEND_F|SEND_B|RECV_F|RECV_B|F|B|I|W|R)(\d+(?:\.\d+)?)")


def instruction_path(program, workload, blocking, capacity=None):
    """Return {op text: (start, end)} and {message: (departure, arrival)}.

    `blocking` says which transfers a rank waits for: a set of SEND and RECV.
    """
    rows = [
        [[TEXT.fullmatch(t).groups() for t in program.text(i).split("&")] for i in range(a, b)]
        for a, b in zip(program.offsets[:-1], program.offsets[1:], strict=True)
    ]
    schedule = program.schedule
    number = {str(schedule.op(n)): n for n in range(len(schedule))}
    place = {  # (text of an item) -> (rank, position)
        "".join(item): (rank, position)
        for rank, row in enumerate(rows)
        for position, items in enumerate(row)
        for item in items
    }

    def op_text(stage, kinds, unit):
        found = [f"{stage}{kind}{unit}" for kind in kinds]
        return next((text for text in found if text in number), None)

    def source_of(text):
        """Return the op whose output an op takes from another stage."""
        stage, kind, unit = TEXT.fullmatch(text).groups()
        if kind == "F":
            return op_text(int(stage) - 1, "F", unit)
        return op_text(int(stage) + 1, "BI", unit) if kind in "BI" else None

    taker = {source_of(text): text for text in number if source_of(text)}
    ends = {}  # op that makes a message -> (text of its send, text of its receive)
    for made, taken in taker.items():
        if place[made][0] != place[taken][0]:
            stage, kind, unit = TEXT.fullmatch(made).groups()
            way = "F" if kind == "F" else "B"
            to = TEXT.fullmatch(taken)[1]
            ends[made] = (f"{stage}SEND_{way}{unit}", f"{to}RECV_{way}{unit}")
    sent_by = {send: made for made, (send, _) in ends.items()}
    received_by = {receive: made for made, (_, receive) in ends.items()}
    lines, queues, leaving = defaultdict(list), defaultdict(list), defaultdict(list)
    for rank, row in enumerate(rows):
        for items in row:
            for item in items:
                text = "".join(item)
                made = sent_by.get(text, text)
                if made in ends and (text in sent_by or not program.listed):
                    lines[rank, place[taker[made]][0]].append(made)
                if text in ends:  # it makes a message
                    queues[key(schedule, text, taker[text])].append(text)
                source = source_of(text) if text in number else None
                if source in ends:
                    leaving[key(schedule, source, text)].append(text)
    ahead = {m: line[i - 1] for line in lines.values() for i, m in enumerate(line) if i}
    gives = {}
    if capacity is not None:
        for name, line in queues.items():
            for position in range(capacity, len(line)):
                gives[line[position]] = leaving[name][position - capacity]
    memo, open_calls = {}, set()

    def solved(function):
        def call(*key):
            key = (function.__name__, *key)
            if key not in memo:
                if key in open_calls:
                    raise Deadlock(str(key))
                open_calls.add(key)
                memo[key] = function(*key[1:])
                open_calls.discard(key)
            return memo[key]

        return call

    @solved
    def enter(rank, position):
        return leave(rank, position - 1) if position else 0.0

    @solved
    def start(rank, position):
        times = [enter(rank, position)]
        for item in rows[rank][position]:
            text = "".join(item)
            source = source_of(text)
            if source in ends:
                times.append(arrival(source))
            elif source is not None:
                times.append(leave(*place[source]))
            if text in gives:
                times.append(start(*place[gives[text]]))
        return max(times)

    @solved
    def leave(rank, position):
        texts = ["".join(item) for item in rows[rank][position]]
        if texts[0] in number:
            return start(rank, position) + workload.duration[number[texts[0]]]
        times = [enter(rank, position)]
        for text in texts:
            if text in received_by and "RECV" in blocking:
                times.append(arrival(received_by[text]))
            if text in sent_by and "SEND" in blocking and workload.meets[number[sent_by[text]]]:
                times.append(arrival(sent_by[text]))
        return max(times)

    @solved
    def departure(made):
        send, receive = ends[made]
        times = [enter(*place[send]) if program.listed else leave(*place[made])]
        if program.listed and workload.meets[number[made]]:
            times.append(enter(*place[receive]))
        if made in ahead:
            times.append(departure(ahead[made]) + workload.wire[number[ahead[made]]])
        return max(times)

    def arrival(made):
        n = number[made]
        return (departure(made) + workload.wire[n]) + workload.latency[n]

    spans = {}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        for rank, row in enumerate(rows):
            for position, items in enumerate(row):
                ended = leave(rank, position)
                for item in items:
                    if "".join(item) in number:
                        spans["".join(item)] = start(rank, position), ended
        return spans, {made: (departure(made), arrival(made)) for made in ends}
    finally:
        sys.setrecursionlimit(limit)


def key(schedule, source, target):
    unit = TEXT.fullmatch(source)[3]
    direction = int(schedule.directions[int(unit.split(".")[0])])
    return TEXT.fullmatch(source)[1], TEXT.fullmatch(target)[1], direction
