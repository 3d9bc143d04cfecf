"""The command `pipesim run`: one step, simulated and written as asked for."""

import os
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipesim.base.files import (
    GANTT_ENDINGS,
    SCHEDULE_ENDING,
    TABLE_ENDINGS,
    VIEWER_ENDINGS,
    has_ending,
    is_schedule_file,
)
from pipesim.cli.assignments import assignment
from pipesim.cli.flags import (
    PROTOCOL_WORDS,
    Commands,
    add_json_flag,
    add_memory_flag,
    add_set_flag,
    add_window_flag,
)
from pipesim.cli.outputs import ProgressBar, check_output, read_window, tell, to_json, write_gantt

if TYPE_CHECKING:
    from pipesim.config.read import Config
    from pipesim.run.step import Step


# Flags that stand for keys of a config.
RUN_FLAGS = {
    "schedule": (
        "run.schedule",
        "NAME|FILE.csv",
        "a name that `pipesim schedules` lists, or a schedule file",
    ),
    "microbatches": (
        "run.microbatches",
        "M",
        "number of micro-batches; a schedule file has its own",
    ),
    "forward": ("stages.forward_ms", "MS,..", "time of F: one number, or one a stage"),
    "backward": ("stages.backward_ms", "MS,..", "time of the whole backward"),
    "input-grad": ("stages.input_grad_ms", "MS,..", "or its input-gradient part"),
    "weight-grad": ("stages.weight_grad_ms", "MS,..", "and its weight-gradient part"),
    "ranks": ("devices.ranks", "P", "number of ranks"),
    "placement": (
        "devices.placement",
        "NAME",
        "linear, looped, v_shape, wave or bidirectional",
    ),
    "latency-ms": ("links.latency_ms", "MS,..", "of a hop: one number, or one a boundary"),
    "engine": ("run.engine", "NAME", "simpy, or replay: the same times from compiled code"),
    "protocol": ("run.protocol", "NAME", PROTOCOL_WORDS),
    "eager-limit-bytes": (
        "run.eager_limit_bytes",
        "N",
        "messages up to this size never block, whatever the protocol",
    ),
    "queue-capacity": ("run.queue_capacity", "N", "messages between two stages; default: any"),
}


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    run = commands.add_parser(
        "run",
        help=words,
        description="Simulate one step, and say where the time goes.",
        epilog=(
            "examples:\n"
            "  pipesim run experiments/configs/straggler.toml --gantt out/gantt.png\n"
            "  pipesim run --schedule 1f1b --microbatches 8 "
            "--forward 1,1,1,2 --backward 2,2,2,4 --text"
        ),
        formatter_class=RawDescriptionHelpFormatter,
    )
    run.add_argument("config", nargs="?", metavar="CONFIG", help=".toml, .yaml or .json file")
    for flag, (key, metavar, words) in RUN_FLAGS.items():
        run.add_argument(f"--{flag}", dest=key, metavar=metavar, help=words)
    run.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the schedule; may be repeated",
    )
    add_set_flag(run)
    add_memory_flag(run)
    run.add_argument(
        "--gantt",
        metavar="FILE",
        help="write the Gantt chart: .png, .svg, .pdf, or .html to zoom into and hover over; or a "
        "trace for viewers, as --trace does",
    )
    add_window_flag(run)
    run.add_argument(
        "--critical-path", action="store_true", help="outline the critical path on the Gantt chart"
    )
    run.add_argument(
        "--trace",
        metavar="FILE",
        help="write the trace: .csv or .parquet, a table; .json or .json.gz, for chrome://tracing "
        "and ui.perfetto.dev; .pftrace, for the latter",
    )
    run.add_argument(
        "--export-schedule",
        metavar="FILE",
        help="write the order that was run, in PyTorch's format: .csv",
    )
    run.add_argument("--text", action="store_true", help="print the Gantt chart as text, too")
    run.add_argument(
        "--sensitivity",
        action="store_true",
        help="print what the step gains and loses as each cost, latency and speed changes",
    )
    add_json_flag(run)
    run.set_defaults(execute=run_command)


def run_command(arguments: Namespace) -> None:
    """Simulate one step and print where the time goes."""
    from pipesim.config.override import override
    from pipesim.config.read import parse_config, read_config
    from pipesim.config.simulate import simulate_config
    from pipesim.files.schedule_csv.write import check_exportable, export_notes, write_schedule
    from pipesim.report.run_text import (
        chunk_note,
        headline,
        run_report,
        sensitivity_text,
        step_text,
    )
    from pipesim.report.text_gantt import text_gantt
    from pipesim.report.trace_file import write_trace
    from pipesim.run.run import Run

    if arguments.text and arguments.json:
        raise ValueError("--text and --json: give one of them")
    if arguments.critical_path and not arguments.gantt:
        raise ValueError("--critical-path is drawn on the Gantt chart: give --gantt FILE, too")
    check_output("--gantt", arguments.gantt, GANTT_ENDINGS + VIEWER_ENDINGS)
    check_output("--trace", arguments.trace, TABLE_ENDINGS + VIEWER_ENDINGS)
    window = read_window(arguments.window, arguments.gantt)
    for_viewers = bool(arguments.gantt) and has_ending(arguments.gantt, VIEWER_ENDINGS)
    if arguments.critical_path and for_viewers:
        raise ValueError(f"--critical-path is drawn on charts: give {', '.join(GANTT_ENDINGS)}")
    check_output("--export-schedule", arguments.export_schedule, (SCHEDULE_ENDING,))
    flags = {key: vars(arguments)[key] for key, _, _ in RUN_FLAGS.values()}
    overrides = dict(assignment(f"{key}={text}") for key, text in flags.items() if text is not None)
    overrides |= dict(assignment(f"run.options.{text}") for text in arguments.option)
    typed = overrides.get("run.schedule")
    if arguments.config is not None and is_schedule_file(typed):
        # A path in a config is relative to the config; a typed one, to the current folder.
        overrides["run.schedule"] = os.path.abspath(typed)
    overrides |= dict(map(assignment, arguments.set))
    if arguments.config is None:
        if not any(key.startswith(("stages", "layers")) for key in overrides):
            raise ValueError(
                "give a CONFIG, or --schedule, --microbatches, --forward and --backward"
            )
        document = override({}, "command line", overrides)
        config = parse_config(document, "command line")
    else:
        config = read_config(arguments.config, overrides)
    if arguments.export_schedule:
        check_exportable(config.schedule)
    unused = chunk_note(config.schedule)
    if unused is not None:
        print(f"note: {config.schedule.name}: {unused}", file=sys.stderr)
    with ProgressBar("op") as progress:
        step = _step(config, progress)
        whole: Run | Step = step or simulate_config(config, progress)
        result = whole if isinstance(whole, Run) else whole.runs[whole.slowest_replica]
        if arguments.json:
            summary = whole.summary()
            if config.batch is not None:
                summary["batch"] = asdict(config.batch)
            if arguments.sensitivity:
                summary["sensitivity"] = result.sensitivity.to_dict(orient="records")
            text = to_json(summary)
        else:
            text = f"{headline(result)}\n{run_report(result, progress, config.batch)}"
            if step is not None:
                text += f"\n{step_text(step)}"
            if arguments.sensitivity:
                text += f"\n{sensitivity_text(result)}"
    # Files first: whoever reads the screen through a pipe may be gone before its end.
    if arguments.gantt and not for_viewers:
        write_gantt(whole, arguments.gantt, critical_path=arguments.critical_path, window=window)
    for path in filter(None, (arguments.gantt if for_viewers else None, arguments.trace)):
        write_trace(whole, path, options=config.sections.run.options)
        tell(path)
    if arguments.export_schedule:
        write_schedule(result.order(), arguments.export_schedule)
        tell(arguments.export_schedule)
        for note in export_notes(result.schedule):
            print(f"note: {note}", file=sys.stderr)
    print(text)
    if arguments.text:
        print(text_gantt(result))


def _step(config: "Config", progress: ProgressBar) -> "Step | None":
    """Return the whole step that a config with a section [training] describes."""
    from pipesim.config.simulate import simulate_step_config
    from pipesim.run.step import without_end

    if config.training is None:
        return None
    reason = without_end(config.schedule)
    if reason is not None:
        print(f"note: {reason}", file=sys.stderr)
        return None
    return simulate_step_config(config, progress)
