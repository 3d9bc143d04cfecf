"""The command `pipesim split`: ways to split the layers of a config, side by side."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.base.errors import ConfigError
from pipesim.base.text import count_text, size_cells, size_unit, span_text, text_table
from pipesim.cli.assignments import assignment
from pipesim.cli.flags import Commands, add_config_argument, add_json_flag, add_set_flag
from pipesim.cli.outputs import ProgressBar, to_json

if TYPE_CHECKING:
    from pipesim.pipeline.layers import LayerProfile
    from pipesim.pipeline.pipeline import Pipeline
    from pipesim.schedules.order.schedule import Schedule
    from pipesim.studies.splits.compare import Choice

MOST_COUNTS = 16  # stages whose layers are listed one by one


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    split = commands.add_parser(
        "split",
        help=words,
        description="Split the layers of a config into stages: the ways to do it side by side, "
        "and the stages of one of them. No rank holds more than its devices.memory_bytes.",
        epilog="The config has [layers] with a file, and [devices] with ranks unless it gives a "
        "split of its own. Exit status 2 if nothing fits.",
    )
    add_config_argument(split)
    split.add_argument(
        "--by",
        choices=("layers", "param_bytes", "stash_bytes", "time", "config", "simulated"),
        default="simulated",
        help="whose stages to print; simulated: layers moved as long as the step gets shorter; "
        "default: simulated",
    )
    add_set_flag(split)
    add_json_flag(split)
    split.set_defaults(execute=split_command)


def split_command(arguments: Namespace) -> None:
    """Print ways to split the layers of a config, and the stages of the one asked for."""
    from pipesim.config.override import override
    from pipesim.config.read import parse_pipeline, parse_schedule, pipeline_options
    from pipesim.config.recompute import recomputing_layers
    from pipesim.config.simulate import run_options
    from pipesim.config.training import training_of
    from pipesim.files.config_file import read_document
    from pipesim.files.layer_csv import read_layers
    from pipesim.studies.splits.compare import BALANCED, plain_choice, split_choices

    path, overrides = arguments.config, dict(map(assignment, arguments.set))
    document = override(read_document(path), path, overrides)
    layers = document.get("layers")
    if not isinstance(layers, dict):
        raise ConfigError(path, ["layers: missing; what is to be split, [layers] with file = ..."])
    own = layers.get("split")
    layers.setdefault("split", "time")
    sections, pipe = parse_pipeline(document, path, Path(path).parent)
    assert sections.layers is not None
    schedule = parse_schedule(sections, pipe, path, Path(path).parent)
    modes = sections.layers.recompute
    if isinstance(modes, list):
        raise ConfigError(
            path,
            [
                "layers.recompute: a mode a stage needs the stages; give one "
                'mode for all, or {"0..15" = "full"} by layers'
            ],
        )
    profile = read_layers(Path(path).parent / sections.layers.file)
    profile = recomputing_layers(profile, modes, path)
    options = pipeline_options(sections, path)
    training = training_of(sections)
    how = run_options(sections)
    for own_choice in ("engine", "memory_limit"):  # the replay engine is used; memory is shown
        del how[own_choice]

    try:
        with ProgressBar("split") as progress:
            choices = split_choices(
                profile,
                pipe,
                schedule,
                counts=own if isinstance(own, list) else None,
                wanted=arguments.by if arguments.by in BALANCED else "time",
                training=training,
                progress=progress,
                how=how,
                pipeline_options=options,
            )
    except ValueError as error:
        raise ConfigError(path, [f"layers.split: {error}"]) from None
    chosen = next((choice for choice in choices if choice.name == arguments.by), None)
    if chosen is None:
        raise ConfigError(path, ["layers.split: --by config: it is no list of counts"])
    if arguments.json:
        print(
            to_json({"choices": [plain_choice(c) for c in choices], "chosen": plain_choice(chosen)})
        )
        return
    print(f"{_headline(profile, pipe, schedule)}\n\n{_side_by_side(choices)}")
    if training is not None:
        print("step: without replicas, reductions and the optimizer of [training]")
    print()
    print(f"{_stages(chosen)}\n\nsplit = {list(chosen.counts)}  # to paste under [layers]")


def _headline(profile: "LayerProfile", pipe: "Pipeline", schedule: "Schedule") -> str:
    sizes = [count_text(len(profile), "layer"), count_text(schedule.stages, "stage")]
    sizes += [count_text(schedule.ranks, "rank"), count_text(schedule.microbatches, "micro-batch")]
    latencies = [link.latency_ms for link in pipe.links.values()] or [0.0]
    bandwidths = [link.bandwidth_gb_s for link in pipe.links.values()]
    given = [value for value in bandwidths if value is not None]
    wire = f"{span_text(given)} GB/s" if given else "any bandwidth"
    return (
        f"{pipe.title}: {', '.join(sizes)}, {schedule.name}; "
        f"links: {span_text(latencies)} ms, {wire}"
    )


def _side_by_side(choices: "list[Choice]") -> str:
    steps = [choice.run.makespan for choice in choices]
    shortest = min(steps)
    held = [max(choice.held) for choice in choices]
    unit, scale = size_unit(max(held))
    columns = {
        "split by": [choice.name for choice in choices],
        "layers a stage": [_counts_text(choice.counts) for choice in choices],
        "largest ms": [f"{max(choice.stage_ms):.2f}" for choice in choices],
        "smallest ms": [f"{min(choice.stage_ms):.2f}" for choice in choices],
        "step ms": [f"{step:.2f}" for step in steps],
        "": [f"{step / shortest - 1:+.2%}" if shortest else "-" for step in steps],
        "bubble": [f"{choice.run.bubble_fraction:.2%}" for choice in choices],
        f"peak {unit}": size_cells(held, scale),
        " ": ["over its memory" if choice.over else "" for choice in choices],
    }
    if not any(held):
        del columns[f"peak {unit}"]
    if not any(columns[" "]):
        del columns[" "]
    notes = "largest, smallest: of the stages, one micro-batch on its device"
    if any(held):
        notes += "\npeak: all that the rank with the most holds at once"
    if any(device.memory_bytes is not None for device in choices[0].run.pipeline.devices):
        notes += "\nkept within devices.memory_bytes where nothing else is said"
    return f"{text_table(columns, left=('split by', 'layers a stage', ' '))}\n{notes}"


def _counts_text(counts: Sequence[int]) -> str:
    if len(counts) > MOST_COUNTS:
        return span_text(counts)
    return " ".join(map(str, counts))


def _stages(choice: "Choice") -> str:
    pipe, rank_of = choice.run.pipeline, choice.run.schedule.placement.rank_of
    columns = {
        "stage": [str(stage) for stage in range(len(choice.counts))],
        "rank": [str(rank) for rank in rank_of],
        "layers": [stage.name for stage in pipe.stages],
        "number": [str(count) for count in choice.counts],
        "ms": [f"{time:.2f}" for time in choice.stage_ms],
    }
    if any(choice.held):
        unit, scale = size_unit(max(choice.held))
        columns[f"peak {unit} of rank"] = size_cells([choice.held[r] for r in rank_of], scale)
        limits = [pipe.devices[rank].memory_bytes for rank in rank_of]
        if any(limit is not None for limit in limits):
            columns[f"of {unit}"] = ["any" if x is None else f"{x / scale:.2f}" for x in limits]
    return f"split by {choice.name}\n{text_table(columns, left=('layers',))}"
