import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesim as ps

counts = st.integers(1, 40)


def test_three_stages_two_microbatches():
    expected = [
        [0, 1, -1, -1],
        [-1, 0, 1, -1],
        [-1, -1, 0, 1],
    ]
    table = ps.gpipe_forward_schedule(3, 2)
    assert table.tolist() == expected
    assert np.issubdtype(table.dtype, np.integer)
    assert ps.bubble_fraction(table) == 0.5


@pytest.mark.parametrize(("p", "m", "percent"), [(3, 30, 6.25), (4, 8, 27.3), (4, 64, 4.5)])
def test_known_bubbles(p, m, percent):
    assert 100 * ps.bubble_formula(p, m) == pytest.approx(percent, abs=0.05)
    assert 100 * ps.bubble_fraction(p, m) == pytest.approx(percent, abs=0.05)


@given(counts, counts)
def test_table_and_closed_form_agree(p, m):
    table = ps.gpipe_forward_schedule(p, m)
    assert table.shape == (p, m + p - 1)
    assert ps.bubble_fraction(table) == pytest.approx(ps.bubble_formula(p, m), rel=1e-12)
    assert ps.bubble_fraction(p, m) == ps.bubble_formula(p, m)


@given(st.integers(1, 8), st.integers(1, 8))
def test_the_table_is_the_run_of_equal_stages(p, m):
    run = ps.simulate(ps.Pipeline.from_costs(1.0, stages=p), "gpipe_forward", m)
    table = np.full((p, m + p - 1), -1)
    slots = run.spans.start.astype(int)
    table[run.schedule.rank, slots] = run.schedule.microbatch
    assert table.tolist() == ps.gpipe_forward_schedule(p, m).tolist()


@pytest.mark.parametrize("bad", [0, -1, 2.5, "3", None, True, float("nan")])
def test_bad_counts_are_named(bad):
    for call in (ps.gpipe_forward_schedule, ps.bubble_formula):
        with pytest.raises(ValueError, match="p = "):
            call(bad, 4)
        with pytest.raises(ValueError, match=f"m = {bad!r}"):
            call(4, bad)


@pytest.mark.parametrize("table", [[], [1, 2, 3], [[]]])
def test_what_is_no_table_is_refused(table):
    with pytest.raises(ValueError, match="slot table"):
        ps.bubble_fraction(table)
