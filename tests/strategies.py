"""What Hypothesis draws from: pipelines with any mixture of costs, and all schedules by name."""

from hypothesis import strategies as st

import pipesim as ps
from pipesim.schedules.families.registry import FAMILIES

WITH_BACKWARD = [name for name, family in FAMILIES.items() if family.backward != "none"]
ONE_STAGE = [n for n, f in FAMILIES.items() if f.chunks == 1 and f.placement == "linear"]

# Costs that are awkward on purpose: zeros, ties, huge ratios, numbers that round.
costs = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 1e-3, 1e3]),
    st.floats(0.0, 1e3, allow_subnormal=False),
)
positive_costs = st.floats(0.01, 100.0)
names = st.sampled_from(ps.schedule_names())


@st.composite
def sizes(draw, name):
    """Draw (ranks, stages, microbatches, options) that a schedule takes."""
    family = FAMILIES[name]
    p = draw(st.integers(1, 4))
    chunks = family.chunks
    if name in ("chimera", "dualpipe"):
        p = 2 * draw(st.integers(1, 2))
    if name == "hanayo":
        chunks = 2 * draw(st.integers(1, 2))
    elif chunks is None:
        chunks = draw(st.integers(1, 3))
    m = draw(st.integers(1, 6))
    options = {}
    if name == "interleaved":
        m = p * draw(st.integers(1, 3))
    elif name == "interleaved_zb":
        m = m if m < p else p * draw(st.integers(1, 3))
    elif name == "dualpipe":
        m = 2 * p + 2 * draw(st.integers(0, 2))
    elif name == "dualpipe_v":
        m = 2 * p + draw(st.integers(0, 3))
    if "limit" in family.options:
        options["limit"] = draw(st.integers(2, 6))
    if "objective" in family.options:
        options["objective"] = draw(st.sampled_from(["span", "makespan"]))
    if "slices" in family.options:
        options["slices"] = draw(st.sampled_from([1, 2, 3, [0.2, 0.3, 0.5]]))
    if "recompute" in family.options:
        options["recompute"] = draw(st.sampled_from(["with_backward", "early", "except_last"]))
    if "batches" in family.options:
        options["batches"] = draw(st.integers(1, 2))
    return p, p * chunks, m, options


@st.composite
def cases(draw, value=costs, of=None):
    """Draw (pipeline, schedule): any schedule on unequal stages, with transfers and devices."""
    name = draw(names if of is None else st.sampled_from(of))
    p, stages, m, options = draw(sizes(name))
    placement = ps.build_schedule(
        name, p, m, **options, **({"chunks": stages // p} if FAMILIES[name].chunks is None else {})
    ).placement
    total = m * options.get("batches", 1)

    def table(shape):
        return st.lists(shape, min_size=stages, max_size=stages)

    rows = table(st.lists(value, min_size=total, max_size=total))
    shape = draw(st.sampled_from([rows, table(value)]))
    pipe = ps.Pipeline.from_costs(
        forward=draw(shape),
        input_grad=draw(shape),
        weight_grad=draw(table(value)),
        recompute_ms=draw(st.one_of(st.just(0.0), shape)),
        ranks=p,
        placement=placement,
        latency_ms=draw(st.sampled_from([0.0, 0.25, 3.0])),
        bandwidth_gb_s=draw(st.sampled_from([None, 0.5, 25.0])),
        output_bytes=draw(st.integers(0, 10**7)),
        speed=draw(st.lists(st.floats(0.25, 4.0), min_size=p, max_size=p)),
        overhead_ms=draw(st.sampled_from([0.0, 0.1])),
        overlap_factor=draw(st.sampled_from([1.0, 0.8])),
    )
    return pipe, ps.build_schedule(name, microbatches=m, pipeline=pipe, **options)
