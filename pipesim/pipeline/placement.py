"""Where stages live: a placement maps each stage, in each direction of flow, to a rank.

    linear          looped              v_shape             wave (W=1)          bidirectional
    rank 0: 0       rank 0: 0, 4        rank 0: 0, 7        rank 0: 0, 7        rank 0: 0, 3'
    rank 1: 1       rank 1: 1, 5        rank 1: 1, 6        rank 1: 1, 6        rank 1: 1, 2'
    rank 2: 2       rank 2: 2, 6        rank 2: 2, 5        rank 2: 2, 5        rank 2: 2, 1'
    rank 3: 3       rank 3: 3, 7        rank 3: 3, 4        rank 3: 3, 4        rank 3: 3, 0'

A dash marks the copy of a stage for the second direction. A wave of W = 2 goes down and up twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipesim.base.checks import check_count, hint
from pipesim.base.text import count_text
from pipesim.base.types import Int32Array


@dataclass(frozen=True, slots=True)
class Placement:
    """The map (stage, direction) -> rank.

    Parameters
    ----------
    name
        "linear", "looped", "v_shape", "wave", "bidirectional", or a name of one's own. Two
        placements with the same map are equal, whatever their names: a wave that goes down and
        up once is a V.
    rank_of
        The rank of every stage, in stage order; every rank from 0 on holds at least one.
    reverse
        The ranks of the stages' second copies, for micro-batches that flow in the other
        direction; None where all flow in one.

    Raises
    ------
    ValueError
        If there is no stage, or a rank in between holds none.

    Examples
    --------
    >>> print(looped_placement(4, 2))
    looped placement, 4 stages on 2 ranks
    rank 0: stages 0, 2
    rank 1: stages 1, 3
    """

    name: str = field(compare=False)
    rank_of: tuple[int, ...]
    reverse: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        both = (*self.rank_of, *(self.reverse or ()))
        if not self.rank_of or set(both) != set(range(max(both) + 1)):
            raise ValueError(
                f"placement {self.name!r} maps stages to ranks {list(both)}; "
                "every rank from 0 on must hold at least one stage"
            )
        if self.reverse is not None and len(self.reverse) != len(self.rank_of):
            raise ValueError(
                f"placement {self.name!r} maps {len(self.rank_of)} stages in one direction "
                f"and {len(self.reverse)} in the other"
            )

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.rank_of)

    @property
    def ranks(self) -> int:
        """Number of ranks p."""
        return max(*self.rank_of, *(self.reverse or ()), 0) + 1

    @property
    def directions(self) -> int:
        """Number of directions in which micro-batches flow: 1 or 2."""
        return 1 if self.reverse is None else 2

    @property
    def table(self) -> Int32Array:
        """The rank of every stage, array (directions, stages)."""
        rows = [self.rank_of] if self.reverse is None else [self.rank_of, self.reverse]
        return np.array(rows, dtype=np.int32)

    @property
    def chunk_table(self) -> Int32Array:
        """The chunk of every stage, its local index on its rank; array (directions, stages)."""
        flat = self.table.ravel()
        chunks = [int(np.count_nonzero(flat[:place] == flat[place])) for place in range(len(flat))]
        return np.array(chunks, dtype=np.int32).reshape(self.table.shape)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank holds in the first direction; their places are chunks."""
        return tuple(stage for stage, owner in enumerate(self.rank_of) if owner == rank)

    def __str__(self) -> str:
        stages, ranks = count_text(self.stages, "stage"), count_text(self.ranks, "rank")
        lines = [f"{self.name} placement, {stages} on {ranks}"]
        for rank in range(self.ranks):
            held = [str(stage) for stage in self.stages_of(rank)]
            held += [f"{s}'" for s, owner in enumerate(self.reverse or ()) if owner == rank]
            noun = "stage" if len(held) == 1 else "stages"
            lines.append(f"rank {rank}: {noun} {', '.join(held)}")
        return "\n".join(lines)


def linear_placement(stages: int, ranks: int | None = None) -> Placement:
    """Return the placement of stage s on rank s.

    Raises
    ------
    ValueError
        If there are not as many ranks as stages.
    """
    ranks = stages if ranks is None else ranks
    _fit("linear", stages, ranks, stages == ranks, "as many ranks as stages")
    return Placement("linear", tuple(range(stages)))


def looped_placement(stages: int, ranks: int) -> Placement:
    """Return the placement of stage s on rank s mod p: interleaved schedules.

    Raises
    ------
    ValueError
        If the number of stages is no multiple of the number of ranks.
    """
    _fit("looped", stages, ranks, stages % ranks == 0, "a multiple of the ranks as stages")
    return Placement("looped", tuple(stage % ranks for stage in range(stages)))


def v_placement(stages: int, ranks: int) -> Placement:
    """Return the placement of stages r and 2p-1-r on rank r: down the ranks and back up.

    Raises
    ------
    ValueError
        If there are not two stages a rank.
    """
    _fit("v_shape", stages, ranks, stages == 2 * ranks, "two stages a rank")
    return Placement("v_shape", (*range(ranks), *reversed(range(ranks))))


def wave_placement(stages: int, ranks: int) -> Placement:
    """Return the placement of Hanayo: down the ranks and back up, once or several times.

    Raises
    ------
    ValueError
        If the number of stages is no multiple of twice the number of ranks.
    """
    fits = stages % (2 * ranks) == 0
    _fit("wave", stages, ranks, fits, "a multiple of two stages a rank")
    return Placement("wave", (*range(ranks), *reversed(range(ranks))) * (stages // (2 * ranks)))


def bidirectional_placement(stages: int, ranks: int) -> Placement:
    """Return the placement of stage s on rank s, and of its copy for the other way on p-1-s.

    Raises
    ------
    ValueError
        If there are not as many ranks as stages.
    """
    _fit("bidirectional", stages, ranks, stages == ranks, "as many ranks as stages")
    return Placement("bidirectional", tuple(range(ranks)), tuple(reversed(range(ranks))))


PLACEMENTS: dict[str, Callable[[int, int], Placement]] = {
    "linear": linear_placement,
    "looped": looped_placement,
    "v_shape": v_placement,
    "wave": wave_placement,
    "bidirectional": bidirectional_placement,
}


def default_ranks(placement: str, stages: int) -> int:
    """Return the default number of ranks for a number of stages: half of it in a V or a wave."""
    return max(1, stages // 2) if placement in ("v_shape", "wave") else stages


def default_placement(stages: int, ranks: int) -> Placement:
    """Return the linear placement, or the looped one where there are fewer ranks than stages.

    Raises
    ------
    ValueError
        If neither fits.
    """
    return (linear_placement if stages <= ranks else looped_placement)(stages, ranks)


def chosen_placement(
    placement: str | Placement | None, stages: int, ranks: int | None
) -> Placement:
    """Return a placement given by name, as such, or not at all: then the default one.

    Raises
    ------
    ValueError
        If the name is unknown, or the placement does not fit the counts.
    """
    if ranks is not None:
        check_count("ranks", ranks)
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise ValueError(f"placement {placement!r} is unknown; {hint(placement, PLACEMENTS)}")
        return PLACEMENTS[placement](stages, ranks or default_ranks(placement, stages))
    if placement is None:
        return default_placement(stages, stages if ranks is None else ranks)
    if ranks not in (None, placement.ranks):
        raise ValueError(
            f"{ranks} ranks for {stages} stages: the {placement.name} placement "
            f"has {placement.ranks} ranks"
        )
    return placement


def named_placement(rank_of: Sequence[int], reverse: Sequence[int] | None = None) -> Placement:
    """Return the placement with this map, under the first name that has it, or as "custom".

    Raises
    ------
    ValueError
        If there is no stage, or a rank in between holds none.

    Examples
    --------
    >>> named_placement([0, 1, 0, 1]).name, named_placement([1, 0]).name
    ('looped', 'custom')
    """
    other = None if reverse is None else tuple(reverse)
    found = Placement("custom", tuple(rank_of), other)
    for make in PLACEMENTS.values():
        try:
            known = make(found.stages, found.ranks)
        except ValueError:  # it does not take so many stages a rank
            continue
        if known == found:
            return known
    return found


def _fit(name: str, stages: int, ranks: int, fits: bool, rule: str) -> None:
    check_count("stages", stages)
    check_count("ranks", ranks)
    if not fits:
        raise ValueError(
            f"{count_text(stages, 'stage')} on {count_text(ranks, 'rank')}: "
            f"the {name} placement needs {rule}"
        )
