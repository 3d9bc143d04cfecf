"""Recomputation in a config: one mode for all stages, one a stage, or a table by layers."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from pipesim.base.errors import ConfigError
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.pipeline import Pipeline


def recomputing_pipeline(pipe: Pipeline, modes: Any) -> Pipeline:
    """Return a pipeline whose stages recompute: all in one mode, or each in its own."""
    for stage, mode in enumerate(modes if isinstance(modes, list) else [modes] * len(pipe.stages)):
        if mode is not None:
            pipe = pipe.recompute(mode, stage)
    return pipe


def recomputing_layers(profile: LayerProfile, modes: Any, name: str) -> LayerProfile:
    """Return a profile whose layers recompute, by the modes that do not depend on the split.

    Modes by stage are for `recomputing_split`.

    Raises
    ------
    ConfigError
        If there is no such layer, or the profile lacks the costs that a mode depends on.
    """
    if isinstance(modes, str):
        return _each(profile, [("", range(len(profile)), modes)], name)
    if isinstance(modes, list) or modes is None:
        return profile
    places = [(f'."{layers[0]}..{layers[-1]}"', layers, mode) for layers, mode in modes]
    return _each(profile, places, name)


def recomputing_split(
    profile: LayerProfile, modes: Any, split: Sequence[int], name: str
) -> LayerProfile:
    """Return a profile whose layers recompute by the modes of the stages of a split.

    A split that does not fit the profile leaves it as it is.

    Raises
    ------
    ConfigError
        If the profile lacks the costs that a mode depends on.
    """
    if not isinstance(modes, list) or sum(split) != len(profile):
        return profile
    ends = [0, *accumulate(split)]
    layers = map(range, ends, ends[1:])
    places = (f"[{stage}]" for stage in range(len(split)))
    return _each(profile, zip(places, layers, modes, strict=True), name)


def _each(
    profile: LayerProfile, modes: Iterable[tuple[str, range, str]], name: str
) -> LayerProfile:
    for place, layers, mode in modes:
        try:
            profile = profile.recompute(mode, layers)
        except ValueError as error:
            raise ConfigError(name, [f"layers.recompute{place}: {error}"]) from None
    return profile
