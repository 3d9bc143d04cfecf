"""What Hypothesis draws from: pipelines with any mixture of costs, and schedules by name."""

from hypothesis import strategies as st

import pipesim as ps

WITH_BACKWARD = [name for name in ps.schedule_names() if name != "gpipe_forward"]

# Costs that are awkward on purpose: zeros, ties, huge ratios, numbers that round.
costs = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 1e-3, 1e3]),
    st.floats(0.0, 1e3, allow_subnormal=False),
)
positive_costs = st.floats(0.01, 100.0)


@st.composite
def pipelines(draw, max_stages=5, max_microbatches=6, value=costs, microbatches=None):
    """Draw (pipeline, m): unequal stages, transfers, devices, perhaps costs by micro-batch."""
    p = draw(st.integers(1, max_stages))
    m = draw(st.integers(1, max_microbatches)) if microbatches is None else microbatches

    def per_stage():
        return st.lists(value, min_size=p, max_size=p)

    by_microbatch = draw(st.booleans())
    rows = st.lists(st.lists(value, min_size=m, max_size=m), min_size=p, max_size=p)
    shape = rows if by_microbatch else per_stage()
    split = draw(st.booleans())
    backward = (
        {"input_grad": draw(shape), "weight_grad": draw(per_stage())}
        if split
        else {"backward": draw(shape)}
    )
    boundaries = st.lists(st.floats(0.0, 5.0), min_size=p - 1, max_size=p - 1)
    pipe = ps.Pipeline.from_costs(
        forward=draw(shape),
        **backward,
        stages=p,
        latency_ms=draw(boundaries),
        bandwidth_gb_s=draw(st.sampled_from([None, 0.5, 25.0])),
        output_bytes=draw(st.integers(0, 10**7)),
        speed=draw(st.lists(st.floats(0.25, 4.0), min_size=p, max_size=p)),
        overhead_ms=draw(st.sampled_from([0.0, 0.1])),
    )
    return pipe, m
