"""On-line policies: they decide while the run goes on, and freeze into orders."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from tests.strategies import positive_costs

POLICIES = {
    "backward": ps.backward_first,
    "oldest": ps.oldest_first,
    "greedy": ps.zero_bubble_greedy,
}


def test_backward_first_by_hand():
    # p=2, m=3, F=1, B=2, K=2. Rank 1 turns each micro-batch round at once; rank 0 runs two
    # forwards, waits for the first gradient (at 4), and goes on in turn.
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    run = ps.simulate(pipe, ps.backward_first(2), 3)
    orders = [" ".join(map(str, run.schedule.order(rank))) for rank in range(2)]
    assert orders == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]
    assert run.makespan == 12
    assert run.closed_form is None


def test_a_limit_of_p_is_as_quick_as_1f1b_with_equal_stages():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4)
    assert ps.simulate(pipe, ps.backward_first(4), 8).makespan == 33


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), p=st.integers(1, 4), m=st.integers(1, 6), most=st.integers(1, 5))
def test_policies_end_within_their_limit_and_freeze(name, data, p, m, most):
    costs = st.lists(positive_costs, min_size=p, max_size=p)
    pipe = ps.Pipeline.from_costs(
        data.draw(costs),
        input_grad=data.draw(costs),
        weight_grad=data.draw(costs),
        latency_ms=data.draw(st.sampled_from([0.0, 0.5, 20.0])),
    )
    run = ps.simulate(pipe, POLICIES[name](most), m)
    assert max(run.ranks.peak_in_flight) <= most
    assert run.lower_bound <= run.makespan * (1 + 1e-12)
    frozen = ps.simulate(pipe, run.order())
    np.testing.assert_array_equal(frozen.spans.start, run.spans.start)
    again = ps.simulate(pipe, POLICIES[name](most), m)
    assert again.schedule == run.schedule


def test_more_cost_can_lower_the_makespan_of_a_policy():
    # Graham's anomaly: a policy decides by what happens to be ready, a static order does not.
    random = np.random.default_rng(0)
    for _ in range(400):
        costs = random.integers(1, 5, (3, 3)).astype(float)
        stage, kind = random.integers(0, 3, 2)
        longer = costs.copy()
        longer[kind, stage] += 1
        steps = [
            ps.simulate(
                ps.Pipeline.from_costs(c[0], input_grad=c[1], weight_grad=c[2]),
                ps.zero_bubble_greedy(2),
                4,
            ).makespan
            for c in (costs, longer)
        ]
        if steps[1] < steps[0]:
            return
    pytest.fail("no anomaly found")


def test_a_policy_that_always_waits_is_told():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    lazy = ps.Policy("lazy", lambda ready, state: None)
    with pytest.raises(ps.DeadlockError, match="policy 'lazy' lets rank 0"):
        ps.simulate(pipe, lazy, 2)
    with pytest.raises(ps.ScheduleError, match="takes no options"):
        ps.simulate(pipe, ps.backward_first(2), 2, options={"a": 1})
    with pytest.raises(ValueError, match="most_in_flight = 0"):
        ps.backward_first(0)


def test_a_policy_must_choose_what_is_ready():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2)
    with pytest.raises(ps.ScheduleError, match="policy 'odd' chose 5 on rank 0 at 0 ms"):
        ps.simulate(pipe, ps.Policy("odd", lambda ready, state: 5), 2)


def test_policies_run_in_one_direction():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2, placement="bidirectional")
    with pytest.raises(ps.ScheduleError, match="runs in one direction"):
        ps.simulate(pipe, ps.backward_first(2), 2)
