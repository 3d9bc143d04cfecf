"""The commands: each reads a config, runs it, prints, and writes the files asked for."""

import os
import sys
from argparse import Namespace
from dataclasses import asdict

from pipesim.base.files import (
    GANTT_ENDINGS,
    SCHEDULE_ENDING,
    TABLE_ENDINGS,
    VIEWER_ENDINGS,
    has_ending,
    is_schedule_file,
)
from pipesim.base.text import text_table
from pipesim.cli.assignments import assignment
from pipesim.cli.outputs import ProgressBar, check_output, read_window, tell, to_json, write_gantt
from pipesim.cli.parser import RUN_FLAGS
from pipesim.config.override import override
from pipesim.config.read import Config, parse_config, read_config
from pipesim.config.simulate import simulate_config, simulate_step_config
from pipesim.files.schedule_csv.write import check_exportable, export_notes, write_schedule
from pipesim.report.run_text import chunk_note, headline, run_report, sensitivity_text, step_text
from pipesim.report.text_gantt import text_gantt
from pipesim.report.trace_file import write_trace
from pipesim.run.run import Run
from pipesim.run.step import Step, without_end
from pipesim.schedules.families.registry import FAMILIES


def run(arguments: Namespace) -> None:
    """Simulate one step and print where the time goes."""
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
        # In a config it is relative to the config; typed, to where it is typed.
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


def _step(config: Config, progress: ProgressBar) -> Step | None:
    """Return the whole step that a config with a section [training] describes."""
    if config.training is None:
        return None
    reason = without_end(config.schedule)
    if reason is not None:
        print(f"note: {reason}", file=sys.stderr)
        return None
    return simulate_step_config(config, progress)


def schedules(arguments: Namespace) -> None:
    """Print every schedule, and what is known of it."""
    rows = [
        {
            "name": name,
            "placement": family.placement,
            "chunks": "v" if family.chunks is None else str(family.chunks),
            "backward": family.backward,
            "warm-up": family.warm_up,
            "peak held": family.peak,
            "bubble": family.formula,
            "options": ", ".join(f"{key}={value}" for key, value in family.options.items()) or "-",
            "source": family.source,
            "summary": family.summary,
        }
        for name, family in FAMILIES.items()
    ]
    if arguments.json:
        print(to_json(rows))
        return
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    print(text_table(columns, left=tuple(columns)))
    print(
        "on rank r of p, with m micro-batches, v chunks a rank, k slices; "
        "bubble: of equal stages without transfers\n"
        "option chunks: what layers are split for; of given stages there are v = stages / p"
    )
