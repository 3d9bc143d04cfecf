"""A run drawn as text, for terminals.

    rank 0 |F0--F1--....B0======....B1======
    rank 1 |....F0--B0======F1--B1======....

Time runs to the right, to scale: F0 is a forward, B0 a backward, a dot is idle.
"""

import numpy as np

from pipesim.run.run import Run


def text_gantt(run: Run, width: int = 100) -> str:
    """Return a run as text, `width` characters for its makespan; `.` is idle.

    An op shows its kind and micro-batch, or its kind alone where there is less room, forwards
    filled up with `-`, backwards with `=`. A last line says so where many ops are shorter than
    a character and do not show.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(forward=[1, 1], backward=[2, 2])
    >>> print(text_gantt(ps.simulate(pipe, "1f1b", microbatches=2), width=36))
    rank 0 |F0--F1--....B0======....B1======
    rank 1 |....F0--B0======F1--B1======....
    """
    begin, makespan = run.spans.begin, run.makespan
    scale = width / makespan if makespan > 0 else 0.0
    first = np.rint((run.spans.start - begin) * scale).astype(int)
    last = np.rint((run.spans.end - begin) * scale).astype(int)
    several = run.schedule.stages > run.schedule.ranks
    margin = len(str(run.schedule.ranks - 1))
    lines = []
    for rank in range(run.schedule.ranks):
        cells = ["."] * width
        for number in range(run.schedule.offsets[rank], run.schedule.offsets[rank + 1]):
            room = int(last[number] - first[number])
            op = run.schedule.op(number)
            label = str(op) if several else str(op).lstrip("0123456789")
            shown = label if len(label) <= room else op.kind.name
            filler = "-" if op.kind.name == "F" else "="
            cells[first[number] : last[number]] = shown[:room].ljust(room, filler)
        lines.append(f"rank {rank:>{margin}} |{''.join(cells)}")
    hidden = np.count_nonzero(last == first)
    if hidden > len(first) / 10:
        lines.append(f"({hidden} of {len(first)} ops are shorter than a character and do not show)")
    return "\n".join(lines)
