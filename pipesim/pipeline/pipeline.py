"""A pipeline: its stages, the devices that run them, the links between them.

Units, here and everywhere inside pipesim: times in milliseconds (float64), sizes in bytes (int),
bandwidth in GB/s (10^9 bytes a second). Times may just as well be dimensionless, F=1 and B=2:
nothing depends on the scale. What ops and messages take is in `costs.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pipesim.base.checks import check_amount, check_count
from pipesim.base.errors import ScheduleError
from pipesim.base.text import span_text, text_table
from pipesim.base.types import FloatArray
from pipesim.pipeline.broadcast import stage_count
from pipesim.pipeline.components import (
    COST_FIELDS,
    Device,
    Stage,
    broadcast_devices,
    broadcast_stages,
    device_columns,
    merged_stage,
    stage_columns,
)
from pipesim.pipeline.links import Link, links_between
from pipesim.pipeline.placement import Placement, chosen_placement, default_placement
from pipesim.pipeline.recompute import recomputing_stages


@dataclass(frozen=True, slots=True, repr=False)
class Pipeline:
    """Stages, the devices of the ranks, and the links between ranks.

    `Pipeline.from_costs` makes one from lists; `LayerProfile.split` from layers.

    Parameters
    ----------
    stages
        In forward order.
    devices
        One a rank.
    links
        Directed pair of ranks -> link; a pair that is not named takes no time.
    placement
        Stage -> rank, for a schedule that is asked for by name and does not bring its own.
    overlap_factor
        An overlapped pair of a forward and a backward takes this times what both cost, on
        stages that do not say how long in their `overlap_ms`.
    title, source
        What this is, and where its numbers come from: shown on figures and in reports.

    Raises
    ------
    ValueError
        If the counts of stages, devices and placement do not fit together.
    """

    stages: tuple[Stage, ...]
    devices: tuple[Device, ...]
    placement: Placement
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    overlap_factor: float = 1.0
    title: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        check_amount("overlap_factor", self.overlap_factor)
        if len(self.stages) != self.placement.stages:
            raise ValueError(
                f"{len(self.stages)} stages for a placement of {self.placement.stages}"
            )
        if len(self.devices) != self.placement.ranks:
            raise ValueError(
                f"{len(self.devices)} devices for a placement on {self.placement.ranks} ranks"
            )
        lengths = {
            len(cost)
            for stage in self.stages
            for cost in (getattr(stage, name) for name in COST_FIELDS.values())
            if isinstance(cost, tuple)
        }
        if len(lengths) > 1:
            raise ValueError(f"costs for different numbers of micro-batches: {sorted(lengths)}")
        for pair in self.links:
            if not all(0 <= rank < len(self.devices) for rank in pair):
                raise ValueError(
                    f"link {pair[0]}->{pair[1]} names a rank outside 0..{len(self.devices) - 1}"
                )
        object.__setattr__(self, "links", dict(self.links))

    @classmethod
    def from_costs(
        cls,
        forward: npt.ArrayLike,
        backward: npt.ArrayLike | None = None,
        *,
        input_grad: npt.ArrayLike | None = None,
        weight_grad: npt.ArrayLike | None = None,
        recompute_ms: npt.ArrayLike = 0.0,
        stages: int | None = None,
        ranks: int | None = None,
        placement: str | Placement | None = None,
        speed: npt.ArrayLike = 1.0,
        overhead_ms: npt.ArrayLike = 0.0,
        memory_bytes: npt.ArrayLike | None = None,
        latency_ms: Any = 0.0,
        bandwidth_gb_s: Any = None,
        stash_bytes: npt.ArrayLike = 0,
        rebuilt_bytes: npt.ArrayLike = 0,
        param_bytes: npt.ArrayLike = 0,
        grad_bytes: npt.ArrayLike = 0,
        optimizer_bytes: npt.ArrayLike = 0,
        output_bytes: npt.ArrayLike = 0,
        input_grad_frees_bytes: npt.ArrayLike = 0,
        overlap_ms: npt.ArrayLike | None = None,
        overlap_factor: float = 1.0,
        names: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> Self:
        """Return the pipeline with these costs; a single number means the same everywhere.

        Parameters
        ----------
        forward, backward, input_grad, weight_grad
            Cost of F, B, I, W on each stage [ms]: a number, one a stage, or an array
            (stages, micro-batches). The backward is B, or I and W, or absent (forward only).
        recompute_ms
            What rebuilding activations adds to B or I [ms]: likewise.
        stages
            Number of stages; needed where every cost is a single number.
        ranks
            Number of ranks; by default as many as stages.
        placement
            "linear", "looped", "v_shape", "wave", "bidirectional", or a Placement; by default
            linear, or looped where there are fewer ranks than stages.
        speed, overhead_ms, memory_bytes
            Values of the devices: a number, or one a rank.
        latency_ms, bandwidth_gb_s
            Values of the links: a number, one a stage boundary, or a mapping of rank pairs
            `{(0, 1): 0.5}`, where a pair that is not named takes no time.
        stash_bytes, rebuilt_bytes, output_bytes, input_grad_frees_bytes
            Of the stages: a number, or one a stage.
        param_bytes, grad_bytes, optimizer_bytes
            Of the stages: a number, or one a stage.
        overlap_ms
            Of a forward overlapped with a backward, by the forward's stage: a number, or one a
            stage; or else
        overlap_factor
            what such a pair takes, as a factor of what both cost.
        names
            One a stage.
        title, source
            What this is, and where its numbers come from: shown on figures and in reports.

        Raises
        ------
        ValueError
            If a length is wrong, or a value negative, NaN or infinite.

        Examples
        --------
        >>> print(Pipeline.from_costs(forward=[1, 1, 2], backward=[2, 2, 4], latency_ms=0.5))
        pipeline: 3 stages on 3 ranks (linear), latency 0.5 ms
        stage  rank  forward_ms  backward_ms
            0     0           1            2
            1     1           1            2
            2     2           2            4
        """
        costs = {
            "forward_ms": forward,
            "backward_ms": backward,
            "input_grad_ms": input_grad,
            "weight_grad_ms": weight_grad,
            "recompute_ms": recompute_ms,
        }
        sizes = {
            "stash_bytes": stash_bytes,
            "rebuilt_bytes": rebuilt_bytes,
            "param_bytes": param_bytes,
            "grad_bytes": grad_bytes,
            "optimizer_bytes": optimizer_bytes,
            "output_bytes": output_bytes,
            "input_grad_frees_bytes": input_grad_frees_bytes,
        }
        count = stage_count(stages, costs, ranks)
        placed = chosen_placement(placement, count, ranks)
        return cls(
            stages=broadcast_stages(count, costs, sizes, overlap_ms, names),
            devices=broadcast_devices(placed.ranks, speed, overhead_ms, memory_bytes),
            placement=placed,
            links=links_between(placed, latency_ms, bandwidth_gb_s),
            overlap_factor=overlap_factor,
            title=title,
            source=source,
        )

    @property
    def ranks(self) -> int:
        """Number of ranks p."""
        return len(self.devices)

    @property
    def microbatches(self) -> int | None:
        """The number of micro-batches that the costs are given for; None: they fit any."""
        for stage in self.stages:
            for name in COST_FIELDS.values():
                cost = getattr(stage, name)
                if isinstance(cost, tuple):
                    return len(cost)
        return None

    def link(self, source: int, target: int) -> Link:
        """Return the link from one rank to another."""
        return self.links.get((source, target), Link())

    @property
    def speeds(self) -> FloatArray:
        """The speed of every rank's device, array (ranks,)."""
        return np.array([device.speed for device in self.devices], dtype=np.float64)

    @property
    def overheads(self) -> FloatArray:
        """The overhead of every rank's device [ms], array (ranks,)."""
        return np.array([device.overhead_ms for device in self.devices], dtype=np.float64)

    def check_microbatches(self, name: str, microbatches: int) -> None:
        """Check that the costs are given for the micro-batches of a schedule by this name.

        Raises
        ------
        ScheduleError
            If they are given for another number.
        """
        if self.microbatches not in (None, microbatches):
            raise ScheduleError(
                f"{name} has {microbatches} micro-batches, "
                f"the costs are given for {self.microbatches}"
            )

    def recompute(
        self,
        mode: str,
        stages: int | Iterable[int] | None = None,
        *,
        time_share: float | None = None,
        kept_share: float | None = None,
    ) -> Self:
        """Return the pipeline in which some stages rebuild, before the backward, what they drop.

        A stage drops nothing ("none"), all but its input ("full", in the time of its forward), or
        a part ("selective"); it rebuilds as a whole, at once. A mode takes the place of one
        before. The input is what the stage before puts out; that of the first stage is not known
        and taken to be as large as its own output.

        Parameters
        ----------
        mode
            "none", "selective" or "full".
        stages
            Their numbers; by default all.
        time_share, kept_share
            The time to rebuild as a share of the forward's, and what is kept as a share of all
            there is to keep: "selective" needs both.

        Raises
        ------
        ValueError
            If the mode is unknown, there is no such stage, or a share is not from 0 to 1 or
            missing.

        Examples
        --------
        >>> pipe = Pipeline.from_costs(1, 2, stages=2, stash_bytes=50, output_bytes=5)
        >>> print(pipe.recompute("full", stages=[0]))
        pipeline: 2 stages on 2 ranks (linear)
        stage  rank  forward_ms  backward_ms  recompute_ms  stash_bytes  rebuilt_bytes  output_bytes
            0     0           1            2             1            5             45             5
            1     1           1            2             0           50              0             5
        """
        changed = recomputing_stages(self.stages, mode, stages, time_share, kept_share)
        return replace(self, stages=changed)

    def regroup(self, chunks: int) -> "Pipeline":
        """Return the pipeline with neighbouring stages merged, `chunks` of them left on each rank.

        Costs and sizes add up; a merged stage is named after those that it is made of. So 1F1B
        (one stage a rank) and interleaved schedules can be compared on one config. The links
        stay as they are, by rank pair; the placement is linear, or looped.

        Parameters
        ----------
        chunks
            Stages a rank afterwards.

        Raises
        ------
        ValueError
            If there are fewer stages already, or they do not go up evenly.

        Examples
        --------
        >>> pipe = Pipeline.from_costs(forward=[1, 2, 3, 4], ranks=2)
        >>> print(pipe.regroup(chunks=1))
        pipeline: 2 stages on 2 ranks (linear)
        stage  rank  name  forward_ms
            0     0  0+1            3
            1     1  2+3            7
        """
        wanted = check_count("chunks", chunks) * self.ranks
        if len(self.stages) % wanted:
            raise ValueError(
                f"{len(self.stages)} stages cannot be merged to {wanted}, {chunks} a rank: "
                "they are merged evenly and never split"
            )
        each = len(self.stages) // wanted
        if each == 1:
            return self
        stages = tuple(
            merged_stage(self.stages[first : first + each], first)
            for first in range(0, len(self.stages), each)
        )
        return replace(self, stages=stages, placement=default_placement(wanted, self.ranks))

    def __str__(self) -> str:
        latencies = [link.latency_ms for link in self.links.values() if link.latency_ms]
        latency = f", latency {span_text(latencies)} ms" if latencies else ""
        head = (
            f"{self.title or 'pipeline'}: {len(self.stages)} stages on {self.ranks} ranks "
            f"({self.placement.name}){latency}"
        )
        rank_of = self.placement.rank_of
        columns = {
            "stage": [str(stage) for stage in range(len(self.stages))],
            "rank": [str(rank) for rank in rank_of],
            **stage_columns(self.stages),
        }
        if any(device != Device() for device in self.devices):
            columns |= device_columns([self.devices[rank] for rank in rank_of])
        source = f"\nsource: {self.source}" if self.source else ""
        return f"{head}\n{text_table(columns, left=('name',))}{source}"

    __repr__ = __str__
