"""Global batch = micro-batch size x micro-batches x replicas."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesim as ps

NAMES = ("global_batch", "microbatch_size", "microbatches", "replicas")
few = st.integers(1, 40)


def test_any_three_by_hand():
    whole = ps.BatchSizes(512, 2, 64, 4)
    for left_out in NAMES:
        given = {name: getattr(whole, name) for name in NAMES if name != left_out}
        assert ps.batch_sizes(**given) == whole
    assert ps.batch_sizes(512, 2, 64, 4) == whole
    assert str(whole) == "global batch 512 = 2 x 64 micro-batches x 4 replicas"
    assert str(ps.batch_sizes(6, 2, 3, 1)) == "global batch 6 = 2 x 3 micro-batches x 1 replica"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            (100, 8, None, 3),
            "global_batch = 100 is not divisible by microbatch_size x replicas = 8 x 3 = 24; "
            "nearest: global_batch = 96 or 120",
        ),
        (
            (100, 8, None, 5),
            "global_batch = 100 is not divisible by microbatch_size x replicas = 8 x 5 = 40; "
            "nearest: global_batch = 80 or 120, or microbatch_size = 5 or 10",
        ),
        (
            (5, 8, None, 1),
            "global_batch = 5 is not divisible by microbatch_size x replicas = 8 x 1 = 8; "
            "nearest: global_batch = 8, or microbatch_size = 5",
        ),
        (
            (96, 8, 4, 2),
            "global_batch = 96 is not equal to microbatch_size x microbatches x replicas = "
            "8 x 4 x 2 = 64; nearest: global_batch = 64, or microbatch_size = 12, or "
            "microbatches = 6, or replicas = 3",
        ),
        ((64, None, None, None), "missing: microbatch_size, microbatches, replicas; all but one"),
        ((64, 2, None, None), "missing: microbatches, replicas; all but one are needed"),
        ((64, 2, 0, None), "microbatches = 0 is not a whole number of at least 1"),
        ((64, 2, True, None), "microbatches = True is not a whole number"),
        ((64, 2, 1.5, None), "microbatches = 1.5 is not a whole number"),
        ((10**12 + 1, 1, 1, None), "global_batch = 1000000000001 is more than 10^12"),
    ],
)
def test_what_does_not_go_together(sizes, message):
    with pytest.raises(ValueError, match=r"missing|nearest|whole number|more than") as caught:
        ps.batch_sizes(*sizes)
    assert str(caught.value).startswith(message)


@given(few, few, few, st.sampled_from(NAMES))
def test_any_three_give_the_fourth(size, m, d, left_out):
    whole = dict(zip(NAMES, (size * m * d, size, m, d), strict=True))
    given = {name: value for name, value in whole.items() if name != left_out}
    assert ps.batch_sizes(**given) == ps.BatchSizes(**whole)


@given(total=st.integers(1, 60), size=few, d=few)
def test_the_nearest_are_legal_and_none_is_nearer(total, size, d):
    def legal(total, size, d):
        return total % (size * d) == 0

    if legal(total, size, d):
        assert ps.batch_sizes(total, size, replicas=d).microbatches == total // (size * d)
        return
    with pytest.raises(ValueError, match="nearest") as caught:
        ps.batch_sizes(total, size, replicas=d)
    told = str(caught.value).split("nearest: ")[1].split(", or ")
    told = {part.split(" = ")[0]: part.split(" = ")[1].split(" or ") for part in told}
    # By trying every value up to well beyond.
    ways = {
        "global_batch": (total, [n for n in range(1, 4000) if legal(n, size, d)]),
        "microbatch_size": (size, [n for n in range(1, 100) if legal(total, n, d)]),
        "replicas": (d, [n for n in range(1, 100) if legal(total, size, n)]),
    }
    for name, (value, allowed) in ways.items():
        below, above = [n for n in allowed if n < value], [n for n in allowed if n > value]
        assert told.get(name, []) == [str(n) for n in below[-1:] + above[:1]]


def test_every_small_set_of_four_is_right_or_refused():
    for total, size, m, d in product(range(1, 13), range(1, 4), range(1, 4), range(1, 3)):
        if total == size * m * d:
            assert ps.batch_sizes(total, size, m, d).global_batch == total
        else:
            with pytest.raises(ValueError, match="is not equal to"):
                ps.batch_sizes(total, size, m, d)
