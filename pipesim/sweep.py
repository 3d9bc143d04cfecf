"""Sweeps: a config, keys to vary, one row a combination."""

import json
from collections.abc import Iterable, Iterator
from itertools import product
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.config import Config, override, parse_config, parse_sweep, simulate_config
from pipesim.errors import ConfigError, DeadlockError
from pipesim.io.config_file import Document, read_document
from pipesim.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

METRICS = (
    "makespan_ms",
    "inflation",
    "bubble_fraction",
    "bubble_ratio",
    "span_bubble",
    "closed_form_bubble_fraction",
    "excess_bubble_fraction",
    "lower_bound_ms",
    "balance",
    "filling",
)


def sweep_config(
    path: str | PathLike[str],
    overrides: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> "pd.DataFrame":
    """Return a table with one row a combination of the axes in a config's [sweep] section.

    Columns: `schedule`, `ranks`, `microbatches`, one column an axis under its key (a list as
    text), and the numbers of the run as in `Run.summary`, among them `makespan_ms`, `inflation`,
    `bubble_fraction` and `closed_form_bubble_fraction`. The keys of the axes and the mode are
    in `table.attrs`. All combinations are checked before the first is run.

    Parameters
    ----------
    path
        A config file with a section [sweep]: `axes`, a table of any keys to lists of values,
        and `mode`, "product" (every combination, the last axis fastest) or "zip".
    overrides
        Keys to set before anything is checked.
    progress
        Called after every run with the number done and the number of all.

    Raises
    ------
    ConfigError
        If the config, an axis or a combination is faulty.
    DeadlockError
        If a combination cannot be run to its end; the message names it.
    """
    import pandas as pd

    document = override(read_document(path), str(path), overrides or {})
    points = list(_points(document, str(path)))
    for point in points:
        _config(document, path, point)
    rows: list[dict[str, Any]] = []
    for point in points:
        try:
            run = simulate_config(_config(document, path, point))
        except DeadlockError as error:
            raise DeadlockError(f"at {point}: {error}") from None
        summary = run.summary()
        rows.append(
            {
                "schedule": summary["schedule"],
                "ranks": summary["ranks"],
                "microbatches": summary["microbatches"],
                **{key: _cell(value) for key, value in point.items()},
                **{name: summary[name] for name in METRICS},
            }
        )
        if progress is not None:
            progress(len(rows), len(points))
    table = pd.DataFrame(rows)
    table.attrs["axes"] = list(points[0])
    table.attrs["mode"] = parse_sweep(document, str(path)).mode
    return table


def sweep_axes(path: str | PathLike[str], overrides: dict[str, Any] | None = None) -> list[str]:
    """Return the keys of the axes in a config's [sweep] section, without running anything.

    Raises
    ------
    ConfigError
        If the section is missing or faulty.
    """
    document = override(read_document(path), str(path), overrides or {})
    axes: dict[str, Any] = parse_sweep(document, str(path)).axes  # type: ignore[assignment]
    return list(axes)


def _points(document: Document, name: str) -> Iterator[dict[str, Any]]:
    sweep = parse_sweep(document, name)
    axes: dict[str, list[Any]] = sweep.axes  # type: ignore[assignment]  # checked by its hook
    if sweep.mode == "product":
        combinations: Iterable[tuple[Any, ...]] = product(*axes.values())
    else:
        lengths = {key: len(values) for key, values in axes.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(name, [f"sweep.axes: zip needs equal lengths, not {lengths}"])
        combinations = zip(*axes.values(), strict=True)
    for values in combinations:
        yield dict(zip(axes, values, strict=True))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _config(document: Document, path: str | PathLike[str], point: dict[str, Any]) -> Config:
    try:
        filled = override(document, str(path), point)
        return parse_config(filled, str(path), Path(path).parent)
    except ConfigError as error:
        where = ", ".join(f"{key} = {value!r}" for key, value in point.items())
        raise ConfigError(f"{path} at {where}", error.faults) from None
