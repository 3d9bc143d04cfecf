"""PipeDream: 1F1B over several batches with no flush between them, on stale weights.

    rank 0 | F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 F6 B3 F7 B4 .  B5 .  B6 .  B7
    rank 1 | .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 .  B6 .  B7 .
    rank 2 | .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 .  B7 .  .
    rank 3 | .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 .  .  .

Two batches of 4 micro-batches: the second one follows without waiting for the optimizer.
"""

from dataclasses import replace

from pipesim.base.checks import check_count
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, units_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.one_f_one_b import alternating
from pipesim.schedules.order.schedule import Schedule


def pipedream(placement: Placement, microbatches: int, *, batches: int = 2) -> Schedule:
    """Return asynchronous 1F1B: several batches with no flush between them.

    What it is for: steady throughput, one micro-batch every max t, at the price of stale
    weights. The order is 1F1B over the micro-batches of all batches, numbered through.
    Warm-up: min(m, p-1-s), m counting those of all batches. Memory: min(m, p-s) micro-batches,
    and as many versions of the weights, on stage s. Bubble: (p-1)/(m+p-1), to 0 with the batches.
    Source: Narayanan et al., PipeDream, 2019.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches of one batch.
    batches
        How many batches run one after the other.

    Raises
    ------
    ValueError
        If `batches` is not a whole number of at least 1.
    """
    last, total = placement.stages - 1, microbatches * check_count("batches", batches)
    versions = tuple(min(total, last - stage + 1) for stage in range(placement.stages))
    return alternating(
        "pipedream", placement, total, lambda stage: last - stage, weight_versions=versions
    )


def pipedream_2bw(placement: Placement, microbatches: int, *, batches: int = 2) -> Schedule:
    """Return PipeDream with double-buffered weights: two versions on every stage.

    Order, warm-up and bubble as `pipedream`; gradients of a batch are gathered before they are
    applied, so that two versions suffice. Source: Narayanan et al., Memory-Efficient
    Pipeline-Parallel DNN Training, 2021.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches of one batch.
    batches
        How many batches run one after the other.

    Raises
    ------
    ValueError
        If `batches` is not a whole number of at least 1.
    """
    order = pipedream(placement, microbatches, batches=batches)
    return replace(order, name="pipedream_2bw", weight_versions=(2,) * placement.stages)


FAMILIES = {
    "pipedream": Family(
        build=pipedream,
        summary="1F1B without flush between batches",
        warm_up="min(m, p-1-r)",
        peak="min(m, p-r), and weight versions",
        closed_form=ClosedForm(formula="(p-1)/(m batches+p-1)", of_counts=units_bubble),
        source="Narayanan et al. 2019",
    ),
    "pipedream_2bw": Family(
        build=pipedream_2bw,
        summary="the same with two weight versions",
        warm_up="min(m, p-1-r)",
        peak="min(m, p-r), weights x 2",
        closed_form=ClosedForm(formula="(p-1)/(m batches+p-1)", of_counts=units_bubble),
        source="Narayanan et al. 2021",
    ),
}
