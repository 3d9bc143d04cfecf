"""Batch arithmetic: global batch = micro-batch size x micro-batches x replicas.

Any three of them give the fourth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isqrt, prod

from pipesim.base.checks import check_count

MOST_SAMPLES = 10**12


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """A batch as it goes through a step.

    Parameters
    ----------
    global_batch
        Samples of one step of the optimizer, over all replicas.
    microbatch_size
        Samples of a micro-batch.
    microbatches
        Micro-batches m that each replica runs in a step.
    replicas
        Copies of the pipeline.
    """

    global_batch: int
    microbatch_size: int
    microbatches: int
    replicas: int

    def __str__(self) -> str:
        plural = "s" if self.replicas != 1 else ""
        return (
            f"global batch {self.global_batch} = {self.microbatch_size} x "
            f"{self.microbatches} micro-batches x {self.replicas} replica{plural}"
        )


def batch_sizes(
    global_batch: int | None = None,
    microbatch_size: int | None = None,
    microbatches: int | None = None,
    replicas: int | None = None,
) -> BatchSizes:
    """Return all four numbers of a batch; any three give the fourth.

    Parameters
    ----------
    global_batch, microbatch_size, microbatches, replicas
        Samples of a step, samples of a micro-batch, micro-batches m, copies of the pipeline;
        None: what is asked for.

    Raises
    ------
    ValueError
        If fewer than three are given, or they do not go together: then it names the nearest
        numbers that do.

    Examples
    --------
    >>> print(batch_sizes(global_batch=512, microbatch_size=2, replicas=4))
    global batch 512 = 2 x 64 micro-batches x 4 replicas
    """
    given = {
        "global_batch": global_batch,
        "microbatch_size": microbatch_size,
        "microbatches": microbatches,
        "replicas": replicas,
    }
    return BatchSizes(*completed(given).values())


def completed(numbers: Mapping[str, int | None]) -> dict[str, int]:
    """Return numbers of which the first is the product of the others, with one that was missing.

    Raises
    ------
    ValueError
        If several are missing, or they do not go together.
    """
    given = {name: check_count(name, n) for name, n in numbers.items() if n is not None}
    for name, number in given.items():
        if number > MOST_SAMPLES:
            raise ValueError(f"{name} = {number} is more than 10^12")
    missing = [name for name in numbers if name not in given]
    whole, *parts = numbers
    if len(missing) > 1:
        raise ValueError(
            f"missing: {', '.join(missing)}; all but one are needed, which give the last one"
        )
    if missing == [whole]:
        return {name: given.get(name, prod(given.values())) for name in numbers}
    named = [name for name in parts if name in given]
    product = prod(given[name] for name in named)
    fits = given[whole] % product == 0 if missing else given[whole] == product
    if not fits:
        factors = " x ".join(str(given[name]) for name in named)
        verdict = "divisible by" if missing else "equal to"
        raise ValueError(
            f"{whole} = {given[whole]} is not {verdict} {' x '.join(named)} = {factors} = "
            f"{product}; nearest: {', or '.join(_nearest(given, whole, named, missing))}"
        )
    return {name: given.get(name, given[whole] // product) for name in numbers}


def _nearest(
    given: Mapping[str, int], whole: str, parts: list[str], missing: list[str]
) -> Iterator[str]:
    """Yield for each number the values next to it that the other numbers allow, as text."""
    total, product = given[whole], prod(given[name] for name in parts)
    multiples = [total // product * product, (total // product + 1) * product]
    yield _either(whole, [n for n in multiples if n] if missing else [product])
    for name in parts:
        share, rest = divmod(total, product // given[name])
        if rest == 0:  # else no value of this one will do
            allowed = _divisors(share) if missing else [share]
            below = [n for n in allowed if n < given[name]]
            above = [n for n in allowed if n > given[name]]
            yield _either(name, below[-1:] + above[:1])


def _either(name: str, values: list[int]) -> str:
    return f"{name} = {' or '.join(map(str, values))}"


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
