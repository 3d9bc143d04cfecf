"""Keeping less of a forward and rebuilding it before the backward: stages and layers that do so.

    mode         kept from the forward on    rebuilt before the backward    in this time
    none         all                         nothing                        0
    selective    what the user says          the rest                       what the user says
    full         the input                   the rest                       that of the forward

All that there is to keep is what is kept now and what is rebuilt now, so that a mode replaces
another one. What the weight gradients need is rebuilt with the rest: they find what they would
without it. The input is what the layer or stage before puts out. That of the first is not known
and taken to be as large as its own output. No input is larger than all that there is to keep.

Layers rebuild one after the other, a stage as a whole. Sources: Chen et al., Training Deep Nets
with Sublinear Memory Cost, 2016; for a part, Korthikanti et al., Reducing Activation
Recomputation in Large Transformer Models, 2022.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, TypeAlias

from pipesim.base.checks import hint, is_number
from pipesim.pipeline.components import Cost, Stage

MODES = ("none", "selective", "full")
Columns: TypeAlias = Mapping[str, Sequence[Any]]  # of a profile, by name; what is unknown is absent


def recomputing_stages(
    stages: Sequence[Stage],
    mode: str,
    chosen: int | Iterable[int] | None,
    time_share: float | None,
    kept_share: float | None,
) -> tuple[Stage, ...]:
    """Return stages of which some rebuild what they do not keep; see `Pipeline.recompute`."""
    _check_mode(mode, time_share, kept_share)
    if mode == "selective" and (time_share is None or kept_share is None):
        raise ValueError("selective recompute of a stage: say how much, by time_share, kept_share")
    changed = list(stages)
    for number in _chosen("stage", chosen, len(stages)):
        stage = stages[number]
        whole = stage.stash_bytes + stage.rebuilt_bytes
        share = {"none": 0.0, "full": 1.0}.get(mode) if time_share is None else time_share
        kept = _kept(mode, whole, stages[max(number - 1, 0)].output_bytes, kept_share)
        more = kept - stage.stash_bytes if stage.input_grad_ms is not None else 0
        changed[number] = replace(
            stage,
            recompute_ms=_times(stage.forward_ms, share or 0.0),
            stash_bytes=kept,
            rebuilt_bytes=whole - kept,
            input_grad_frees_bytes=stage.input_grad_frees_bytes + more,
        )
    return tuple(changed)


def recomputing_columns(
    profile: Columns,
    mode: str,
    chosen: int | Iterable[int] | None,
    time_share: float | None,
    kept_share: float | None,
) -> dict[str, Any]:
    """Return the columns of a profile of layers that change; see `LayerProfile.recompute`."""
    _check_mode(mode, time_share, kept_share)
    numbers = _chosen("layer", chosen, len(profile["forward_ms"]))
    nothing = (0,) * len(profile["forward_ms"])
    times = list(profile.get("recompute_ms", nothing))
    for number in numbers:
        times[number] = _layer_time(profile, mode, number, time_share)
    columns: dict[str, Any] = {"recompute_ms": times}
    if "stash_bytes" not in profile:
        if kept_share is not None:
            raise ValueError(f"kept_share = {kept_share:g}: the profile gives no stash_bytes")
    else:
        stash, rebuilt = list(profile["stash_bytes"]), list(profile.get("rebuilt_bytes", nothing))
        later = list(profile.get("wgrad_stash_bytes", stash))
        for number in numbers:
            whole = stash[number] + rebuilt[number]
            kept = _kept(mode, whole, _layer_input(profile, mode, number, kept_share), kept_share)
            if "wgrad_stash_bytes" not in profile:
                later[number] = whole
            stash[number], rebuilt[number] = kept, whole - kept
        columns |= {"stash_bytes": stash, "rebuilt_bytes": rebuilt}
        if "input_grad_ms" in profile and later != stash:
            columns["wgrad_stash_bytes"] = later
    # A column of nothing is not put where there was none.
    return {
        name: tuple(values) for name, values in columns.items() if any(values) or name in profile
    }


def _layer_time(profile: Columns, mode: str, number: int, share: float | None) -> float:
    """Return the time in which a layer rebuilds what it has not kept [ms]."""
    if mode == "none":
        return 0.0
    if share is None and mode == "selective":
        if "selective_ms" not in profile:
            raise ValueError(_part_unknown("selective_ms", "time_share"))
        return float(profile["selective_ms"][number])
    return float(profile["forward_ms"][number] * (1.0 if share is None else share))


def _layer_input(profile: Columns, mode: str, number: int, share: float | None) -> int:
    """Return what a layer keeps where no share says so [bytes]: its input, or the given part."""
    if mode == "none" or share is not None:
        return 0
    if mode == "selective":
        if "selective_stash_bytes" not in profile:
            raise ValueError(_part_unknown("selective_stash_bytes", "kept_share"))
        return int(profile["selective_stash_bytes"][number])
    if "output_bytes" not in profile:
        raise ValueError(
            "full recompute keeps the input of a layer, but the profile gives no output_bytes; "
            "give that column, or kept_share"
        )
    return int(profile["output_bytes"][max(number - 1, 0)])


def _part_unknown(column: str, argument: str) -> str:
    return (
        f"selective recompute rebuilds a part, but the profile gives no {column}; "
        f"give that column, or {argument}"
    )


def _kept(mode: str, whole: int, known: int, share: float | None) -> int:
    if mode == "none":
        return whole
    return min(known, whole) if share is None else round(share * whole)


def _times(cost: Cost, share: float) -> Cost:
    return tuple(value * share for value in cost) if isinstance(cost, tuple) else cost * share


def _check_mode(mode: str, time_share: float | None, kept_share: float | None) -> None:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; {hint(mode, MODES)}")
    for name, share in (("time_share", time_share), ("kept_share", kept_share)):
        if share is None:
            continue
        if mode == "none":
            raise ValueError(f"{name} = {share!r}: where nothing is rebuilt there are no shares")
        if not (is_number(share) and 0 <= share <= 1):
            raise ValueError(f"{name} = {share!r} is not a number from 0 to 1")


def _chosen(noun: str, chosen: int | Iterable[int] | None, count: int) -> Sequence[int]:
    if chosen is None:
        return range(count)
    numbers = sorted({index(n) for n in ([chosen] if isinstance(chosen, int) else chosen)})
    for number in numbers:
        if not 0 <= number < count:
            raise ValueError(f"there is no {noun} {number}: they go from 0 to {count - 1}")
    return numbers
