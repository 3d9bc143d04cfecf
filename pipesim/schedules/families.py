"""Every schedule by its name: what builds it, what it needs, and what is known of it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipesim.schedule import Schedule
from pipesim.schedules import (
    chimera,
    dualpipe,
    gpipe,
    hanayo,
    interleaved,
    one_f_one_b,
    sliced,
    v_family,
    zb_auto,
    zb_v,
    zero_bubble,
)
from pipesim.slot_table import bubble_formula

Builder: TypeAlias = Callable[..., Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is known of a schedule by name.

    Parameters
    ----------
    build
        (placement, microbatches, **options) -> Schedule; with `pipeline=` too if `by_cost`.
    summary
        What it does, in a few words.
    placement
        Name of the placement that it lives on.
    chunks
        Stages a rank; None: any number, the option `chunks`, by default 2.
    backward
        Which ops its backward is made of: "none", "B", "I, W" or "B, I, W".
    warm_up, peak
        Forwards before the steady state, and micro-batches held, on rank r; as text.
    formula
        Bubble fraction with equal stages and no transfers, with its range; as text.
    bubble
        The same of a schedule, None outside of that range or where none is known.
    source
        Where it was published.
    by_cost
        Whether the order depends on the costs of the pipeline.
    """

    build: Builder
    summary: str
    placement: str = "linear"
    chunks: int | None = 1
    backward: str = "B"
    warm_up: str
    peak: str
    formula: str
    bubble: Callable[[Schedule], float | None] = lambda schedule: None
    source: str
    by_cost: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """The names of the options that it takes, with their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        own = {p.name: p.default for p in parameters if p.name != "pipeline"}
        return {"chunks": 2, **own} if self.chunks is None else own


def _equal(schedule: Schedule) -> float:
    return bubble_formula(schedule.ranks, schedule.microbatches)


def _units(schedule: Schedule) -> float:
    """Return (p-1)/(m x chunks x slices + p-1)."""
    chunks = schedule.stages // schedule.ranks
    return bubble_formula(schedule.ranks, schedule.microbatches * chunks * schedule.slices)


def _interleaved(schedule: Schedule) -> float | None:
    """Return the closed form where the groups are such that it holds."""
    return _units(schedule) if schedule.microbatches >= schedule.ranks else None


def _breadth_first(schedule: Schedule) -> float:
    p, m = schedule.ranks, schedule.microbatches
    chunks = schedule.stages // p
    slots = (chunks - 1) * max(m, p) + m + p - 1
    return 1 - m * chunks / slots


_SAME = "(p-1)/(m+p-1)"

FAMILIES: dict[str, Family] = {
    "gpipe_forward": Family(
        build=gpipe.gpipe_forward,
        summary="forwards only",
        backward="none",
        warm_up="m",
        peak="1",
        formula=_SAME,
        bubble=_equal,
        source="Huang et al. 2019",
    ),
    "gpipe": Family(
        build=gpipe.gpipe,
        summary="all forwards, then all backwards",
        warm_up="m",
        peak="m",
        formula=_SAME,
        bubble=lambda s: None if s.separate_recompute else _equal(s),
        source="Huang et al. 2019",
    ),
    "1f1b": Family(
        build=one_f_one_b.one_f_one_b,
        summary="one forward, one backward in turn",
        warm_up="min(m, p-1-r)",
        peak="min(m, p-r)",
        formula=_SAME,
        bubble=_equal,
        source="Narayanan et al. 2021",
    ),
    "1f1b_eager": Family(
        build=one_f_one_b.eager_one_f_one_b,
        summary="1F1B with twice the warm-up, to hide transfers",
        warm_up="min(m, 2(p-1-r))",
        peak="min(m, 2(p-r)-1)",
        formula=_SAME,
        bubble=_equal,
        source="Zhuang et al. 2023",
    ),
    "interleaved": Family(
        build=interleaved.interleaved,
        summary="1F1B over v chunks a rank",
        placement="looped",
        chunks=None,
        warm_up="min(m v, 2(p-1-r)+(v-1)N) chunks",
        peak="min(m v, 2(p-1-r)+(v-1)N+1) chunks",
        formula="(p-1)/(m v+p-1)",
        bubble=_interleaved,
        source="Narayanan et al. 2021",
    ),
    "interleaved_zb": Family(
        build=interleaved.interleaved_zb,
        summary="interleaved, with a split backward",
        placement="looped",
        chunks=None,
        backward="I, W",
        warm_up="p-1-r+(v-1)N chunks",
        peak="min(m v, p+(v-1)N) chunks",
        formula="-",
        source="PyTorch; Qi et al. 2024",
    ),
    "looped_bfs": Family(
        build=interleaved.looped_bfs,
        summary="all micro-batches through a chunk before the next",
        placement="looped",
        chunks=None,
        warm_up="m v chunks",
        peak="m v chunks",
        formula="(p-1)/(m v+p-1), m >= p",
        bubble=_breadth_first,
        source="Lamy-Poirier 2023",
    ),
    "zb_h1": Family(
        build=zero_bubble.zb_h1,
        summary="split backward, memory of 1F1B",
        backward="I, W",
        warm_up="min(m, p-1-r)",
        peak="min(m, p)",
        formula="span time (p-1)(F+I-W)",
        source="Qi et al. 2024",
    ),
    "zb_h2": Family(
        build=zero_bubble.zb_h2,
        summary="split backward, no bubble at F=I=W",
        backward="I, W",
        warm_up="min(m, 2(p-r)-1)",
        peak="min(m, 2p-1)",
        formula="span time (p-1)(F+I-2W)",
        source="Qi et al. 2024",
    ),
    "zb_auto": Family(
        build=zb_auto.zb_auto,
        summary="the best order found within a memory limit",
        backward="I, W",
        warm_up="by cost",
        peak="the limit",
        formula="at most that of zb_h1",
        source="Qi et al. 2024",
        by_cost=True,
    ),
    "zb_1p": Family(
        build=zb_auto.zb_1p,
        summary="the best order found in the memory of 1F1B",
        backward="I, W",
        warm_up="by cost",
        peak="p stashes",
        formula="span time (p-1)(F+I-W)",
        source="Qi et al. 2024",
        by_cost=True,
    ),
    "zb_2p": Family(
        build=zb_auto.zb_2p,
        summary="the best order found in twice that memory",
        backward="I, W",
        warm_up="by cost",
        peak="2p stashes",
        formula="span time about 0",
        source="Qi et al. 2024",
        by_cost=True,
    ),
    "zb_v": Family(
        build=zb_v.zb_v,
        summary="two chunks in a V, no bubble at F=I=W",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="2(p-r)-1+2r chunks",
        peak="min(2m, 2p) chunks",
        formula="span time 0 at F=I=W",
        source="Qi et al. 2024",
    ),
    "v_schedule": Family(
        build=v_family.v_schedule,
        summary="the best order found on a V within a memory limit",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="by cost",
        peak="the limit k, chunks",
        formula="span 0 to 3p-1 slots, k=2p to p",
        source="Qi et al. 2024, Controllable Memory",
        by_cost=True,
    ),
    "v_half": Family(
        build=v_family.v_half,
        summary="the same in half the memory of 1F1B",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="by cost",
        peak="p chunks, p+1 if p is odd, 4 if p = 2",
        formula="span 3p-1 slots at F=I=W",
        source="Qi et al. 2024, Controllable Memory",
        by_cost=True,
    ),
    "v_min": Family(
        build=v_family.v_min,
        summary="the same in about a third of it",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="by cost",
        peak="2 floor((p+4)/3) chunks",
        formula="span about 4p slots at F=I=W",
        source="Qi et al. 2024, Controllable Memory",
        by_cost=True,
    ),
    "dualpipe": Family(
        build=dualpipe.dualpipe,
        summary="from both ends, forwards overlap backwards",
        placement="bidirectional",
        backward="B, I, W",
        warm_up="p or p+1",
        peak="p+1, weights x 2",
        formula="time (p/2-1)(F&B+B-3W)",
        source="DeepSeek-AI 2024",
    ),
    "dualpipe_v": Family(
        build=dualpipe.dualpipe_v,
        summary="DualPipe folded into a V",
        placement="v_shape",
        chunks=2,
        backward="B, I, W",
        warm_up="2p or 2p+1 chunks",
        peak="2p+1 chunks",
        formula="time (p-1)(F&B+B-3W)",
        source="DeepSeek-AI 2025",
    ),
    "chimera": Family(
        build=chimera.chimera,
        summary="two pipelines in opposite directions",
        placement="bidirectional",
        warm_up="varies",
        peak="min(m, p), weights x 2",
        formula="(p-2)/(3m/2+p-2) at B=2F, m=n p",
        source="Li and Hoefler 2021",
    ),
    "hanayo": Family(
        build=hanayo.hanayo,
        summary="zig-zag waves over one copy of the model",
        placement="wave",
        chunks=None,
        warm_up="varies",
        peak="min(m, p) v chunks",
        formula="(2p-2)/(3pW+2p-2) at B=2F, m=p",
        source="Liu et al. 2023",
    ),
    "seq1f1b": Family(
        build=sliced.seq1f1b,
        summary="1F1B over slices of micro-batches",
        warm_up="min(m k, p-2-r+k) slices",
        peak="min(m k, p-1-r+k) slices",
        formula="(p-1)/(m k+p-1)",
        bubble=lambda s: _units(s) if len(set(s.fractions)) == 1 else None,
        source="Sun et al. 2024",
    ),
    "terapipe": Family(
        build=sliced.terapipe,
        summary="forwards of slices",
        backward="none",
        warm_up="m k slices",
        peak="1 slice",
        formula="(p-1)/(m k+p-1)",
        bubble=lambda s: _units(s) if len(set(s.fractions)) == 1 else None,
        source="Li et al. 2021",
    ),
    "pipedream": Family(
        build=one_f_one_b.pipedream,
        summary="1F1B without flush between batches",
        warm_up="min(m, p-1-r)",
        peak="min(m, p-r), and weight versions",
        formula="(p-1)/(m batches+p-1)",
        bubble=_equal,
        source="Narayanan et al. 2019",
    ),
    "pipedream_2bw": Family(
        build=one_f_one_b.pipedream_2bw,
        summary="the same with two weight versions",
        warm_up="min(m, p-1-r)",
        peak="min(m, p-r), weights x 2",
        formula="(p-1)/(m batches+p-1)",
        bubble=_equal,
        source="Narayanan et al. 2021",
    ),
}
