"""Where stages live: a placement maps each stage to the rank that runs it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """The map stage -> rank.

    Parameters
    ----------
    name
        "linear", or a name of one's own.
    rank_of
        The rank of every stage, in stage order; every rank from 0 on holds at least one.

    Raises
    ------
    ValueError
        If there is no stage, or a rank in between holds none.

    Examples
    --------
    >>> print(linear_placement(3))
    linear placement, 3 stages on 3 ranks
    rank 0: stage 0
    rank 1: stage 1
    rank 2: stage 2
    """

    name: str
    rank_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.rank_of or set(self.rank_of) != set(range(self.ranks)):
            raise ValueError(
                f"placement {self.name!r} maps stages to ranks {list(self.rank_of)}; "
                "every rank from 0 on must hold at least one stage"
            )

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.rank_of)

    @property
    def ranks(self) -> int:
        """Number of ranks p."""
        return max(self.rank_of, default=-1) + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank holds, in order; a stage's index in it is its chunk."""
        return tuple(stage for stage, owner in enumerate(self.rank_of) if owner == rank)

    @property
    def chunk_of(self) -> tuple[int, ...]:
        """The chunk of every stage: its local index on its rank."""
        return tuple(self.rank_of[:stage].count(rank) for stage, rank in enumerate(self.rank_of))

    def __str__(self) -> str:
        lines = [f"{self.name} placement, {self.stages} stages on {self.ranks} ranks"]
        for rank in range(self.ranks):
            stages = self.stages_of(rank)
            noun = "stage" if len(stages) == 1 else "stages"
            lines.append(f"rank {rank}: {noun} {', '.join(map(str, stages))}")
        return "\n".join(lines)


def linear_placement(stages: int) -> Placement:
    """Return the placement of stage s on rank s.

    Raises
    ------
    ValueError
        If `stages` is below 1.
    """
    return Placement("linear", tuple(range(stages)))


PLACEMENTS: dict[str, Callable[[int], Placement]] = {"linear": linear_placement}
