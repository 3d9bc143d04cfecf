"""The kinds of layer of a model as rows of FLOPs and bytes, and the profile they make."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipesim.base.checks import LEAST_RATE, MOST_MS, is_number
from pipesim.base.text import text_table
from pipesim.pipeline.costs import wire_ms
from pipesim.pipeline.layers import LayerProfile

PROFILE_SIZES = (
    "stash_bytes",
    "wgrad_stash_bytes",
    "selective_stash_bytes",
    "param_bytes",
    "output_bytes",
)


class Parts(NamedTuple):
    """An amount by the parts of a micro-batch's work: F, I, W."""

    forward: int
    input_grad: int
    weight_grad: int


NOTHING = Parts(0, 0, 0)


class Row(NamedTuple):
    """What an embedding, a layer, or a head is, and takes for one micro-batch.

    FLOPs and parameters are those of all tensor-parallel ranks together, bytes those of one.
    Selective recompute repeats `rebuilt_flops` and keeps `selective_stash_bytes`. `moved_bytes`
    is what attention reads and writes between its matrices.
    """

    kind: str
    flops: Parts
    parameters: int
    param_bytes: int
    stash_bytes: int
    selective_stash_bytes: int
    wgrad_stash_bytes: int
    output_bytes: int
    rebuilt_flops: int = 0
    moved_bytes: Parts = NOTHING


def estimated_profile(
    rows: Sequence[Row],
    names: Sequence[str],
    tensor_parallel: int,
    peak_tflops: float,
    efficiency: float,
    memory_gb_s: float | None,
) -> LayerProfile:
    """Return the profile of layers, a row each, with times estimated from FLOPs.

    The arguments, and what is raised, are those of `Transformer.profile`.
    """
    _check_rate("peak_tflops", peak_tflops, MOST_MS)
    _check_rate("efficiency", efficiency, 1)
    source = f"estimated from FLOPs at {peak_tflops:g} TFLOP/s x {efficiency:g}"
    if memory_gb_s is not None:
        _check_rate("memory_gb_s", memory_gb_s, MOST_MS)
        source += f", scores moved at {memory_gb_s:g} GB/s"

    def time_ms(flops: int, moved_bytes: int) -> float:
        moving = wire_ms(moved_bytes, memory_gb_s)
        return flops / (tensor_parallel * peak_tflops * efficiency * 1e9) + moving

    times = [list(map(time_ms, row.flops, row.moved_bytes)) for row in rows]
    forward, input_grad, weight_grad = zip(*times, strict=True)
    sizes: dict[str, Any] = {
        name: tuple(getattr(row, name) for row in rows) for name in PROFILE_SIZES
    }
    return LayerProfile(
        forward_ms=forward,
        input_grad_ms=input_grad,
        weight_grad_ms=weight_grad,
        selective_ms=tuple(time_ms(row.rebuilt_flops, row.moved_bytes.forward) for row in rows),
        names=tuple(names),
        labels={"kind": tuple(row.kind for row in rows)},
        source=source,
        **sizes,
    )


def rows_table(rows: Sequence[Row], counts: Sequence[int]) -> str:
    """Return a table of rows and of how many layers each stands for."""
    columns = {
        "kind": [row.kind for row in rows],
        "count": list(map(str, counts)),
        "parameters": [str(row.parameters) for row in rows],
    }
    for place, part in enumerate("FIW"):
        columns[f"{part} GFLOP"] = [f"{row.flops[place] / 1e9:.1f}" for row in rows]
    for title, name in (
        ("param MB", "param_bytes"),
        ("stash MB", "stash_bytes"),
        ("selective MB", "selective_stash_bytes"),
        ("I to W MB", "wgrad_stash_bytes"),
        ("output MB", "output_bytes"),
    ):
        columns[title] = [f"{getattr(row, name) / 1e6:.1f}" for row in rows]
    return text_table(columns, left=("kind",))


def _check_rate(name: str, value: Any, most: float) -> None:
    if not (is_number(value) and LEAST_RATE <= value <= most):
        limit = "1" if most == 1 else "10^15"
        raise ValueError(f"{name} = {value!r} is not a number from 10^-9 to {limit}")
