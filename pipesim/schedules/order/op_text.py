"""Orders as texts: `0F0 1F0 2F1&0B0`, one text a rank, ops with spaces between."""

from collections.abc import Iterable, Iterator, Sequence

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Op, parse_op
from pipesim.pipeline.placement import Placement, named_placement

Item = tuple[Op, int]  # an op, and the number of its overlapped pair on the rank, or -1


def parse_order(order: str | Iterable[str | Op]) -> Iterator[Item]:
    """Yield the ops of one rank's order, each with the number of its pair, or -1.

    Raises
    ------
    ValueError
        If a text is no op.

    Examples
    --------
    >>> [(str(op), pair) for op, pair in parse_order("0F0 1F0&0B0")]
    [('0F0', -1), ('1F0', 0), ('0B0', 0)]
    """
    pairs = 0
    for item in order.split() if isinstance(order, str) else order:
        texts = item.split("&") if isinstance(item, str) else [item]
        for text in texts:
            op = parse_op(text) if isinstance(text, str) else text
            yield op, pairs if len(texts) > 1 else -1
        pairs += len(texts) > 1


def order_columns(order: Sequence[Item]) -> tuple[list[int], ...]:
    """Return an order as columns: stages, kinds, micro-batches, slices, pairs."""
    stages: list[int] = [op.stage for op, _ in order]
    kinds: list[int] = [op.kind for op, _ in order]
    microbatches = [op.microbatch for op, _ in order]
    return stages, kinds, microbatches, [op.slice for op, _ in order], [pair for _, pair in order]


def implied_placement(orders: Sequence[Sequence[Item]], name: str) -> Placement:
    """Return the placement in which each stage lives on the rank whose order names it first.

    Raises
    ------
    ScheduleError
        If a stage in between is on no rank.
    """
    owner: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for op, _ in order:
            owner.setdefault(op.stage, rank)
    missing = set(range(max(owner) + 1)) - set(owner)
    if missing:
        raise ScheduleError(f"{name}: no rank runs stage {min(missing)}")
    return named_placement([owner[stage] for stage in range(len(owner))])


def op_text(op: Op, several_stages: bool, sliced: bool) -> str:
    """Return an op as text, without a stage or a slice if its schedule does not need them.

    Examples
    --------
    >>> op_text(parse_op("2F0.1"), several_stages=False, sliced=True)
    'F0.1'
    """
    stage = str(op.stage) if several_stages else ""
    return f"{stage}{op.kind.name}{op.microbatch}" + (f".{op.slice}" if sliced else "")
