"""What the commands take. Values are handed on as text; the config's own checks judge them."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction
from typing import TypeAlias

Commands: TypeAlias = "_SubParsersAction[ArgumentParser]"

PROTOCOL_NAMES = ("eager", "rendezvous", "odd_even", "paired", "posted", "posted_blocking")
PROTOCOL_WORDS = f"{', '.join(PROTOCOL_NAMES)}; default: eager"

LAYERS_CONFIG = """\
  [run]
  schedule = "1f1b"
  microbatches = 8
  [layers]
  file = "layers.csv"
  split = "time"
  [devices]
  ranks = 4
"""

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


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    parser = ArgumentParser(
        prog="pipesim",
        description="Simulate pipeline-parallel training with unequal stages, op by op.",
        epilog="Exit status: 0 done; 2 bad input; 3 the run cannot finish.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_compare(commands)
    _add_sweep(commands)
    _add_profile(commands)
    _add_split(commands)
    _add_lower(commands)
    schedules = commands.add_parser(
        "schedules", help="list the schedules and what is known of them"
    )
    _json_flag(schedules)
    _add_check(commands)
    return parser


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="simulate one step",
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
    _set_flag(run)
    _memory_flag(run)
    run.add_argument(
        "--gantt",
        metavar="FILE",
        help="write the Gantt chart: .png, .svg, .pdf, or .html to zoom into and hover over; or a "
        "trace for viewers, as --trace does",
    )
    _window_flag(run)
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
    _json_flag(run)


def _add_compare(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="run several schedules on one config",
        description="Run several schedules on the stages of one config, fastest first.",
    )
    compare.add_argument("config", metavar="CONFIG", help=".toml, .yaml or .json file")
    compare.add_argument(
        "--schedules",
        required=True,
        metavar="NAME,..",
        help="names, .csv files, or all of `pipesim schedules`",
    )
    _set_flag(compare)
    _memory_flag(compare)
    compare.add_argument(
        "--gantt",
        metavar="FILE",
        help="write the Gantt charts under each other: .png, .svg, .pdf or .html",
    )
    _window_flag(compare)
    _json_flag(compare)


def _window_flag(command: ArgumentParser) -> None:
    command.add_argument(
        "--window",
        metavar="BEGIN:END",
        help="the part of the run that an .html chart shows, in ms; default: all, or as much as a "
        "browser takes",
    )


def _add_lower(commands: Commands) -> None:
    lower = commands.add_parser(
        "lower",
        help="print the instructions of every rank, sends and receives among them",
        description="Print what every rank does in order under a protocol, side by side; slots "
        "are no times. Exit status 3 if it hangs.",
    )
    lower.add_argument("config", metavar="CONFIG", help=".toml, .yaml or .json file")
    lower.add_argument("--protocol", metavar="NAME", help=PROTOCOL_WORDS)
    lower.add_argument(
        "--names",
        choices=("pytorch", "deepspeed"),
        default="pytorch",
        help="whose names to use: 0SEND_F0, or SendActivation 0",
    )
    _set_flag(lower)
    _json_flag(lower)


def _add_sweep(commands: Commands) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="run a config for every combination of its [sweep] axes",
        description="Run a config for every combination of the axes in its section [sweep].",
        epilog="A point that fails is a row with its error. Exit status 2 if all do, 130 if "
        "interrupted.",
    )
    sweep.add_argument("config", metavar="CONFIG", help=".toml, .yaml or .json file")
    _set_flag(sweep)
    _memory_flag(sweep)
    sweep.add_argument(
        "--csv", metavar="FILE", help="write the table, one row a point: .csv or .parquet"
    )
    sweep.add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted sweep to the same file",
    )
    sweep.add_argument("--plot", metavar="FILE", help="write a line plot: .png, .svg or .pdf")
    sweep.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with sliders for the axes, which chart and numbers follow: .html",
    )
    sweep.add_argument(
        "--heat",
        action="store_true",
        help="plot a heat map over two axes instead: --x along and the other up",
    )
    sweep.add_argument("--x", metavar="KEY", help="axis along the plot; default: the first number")
    sweep.add_argument("--y", metavar="COLUMN", default="makespan_ms", help="default: makespan_ms")
    sweep.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="workers; -1: one a core; default: this process, or all that the cluster has",
    )
    sweep.add_argument(
        "--backend",
        choices=("loky", "dask", "ray"),
        default="loky",
        help="where the workers are: on this machine, or on a cluster; default: loky",
    )
    sweep.add_argument("--cluster", metavar="ADDRESS", help="of the cluster; default: a local one")
    _json_flag(sweep)


def _add_profile(commands: Commands) -> None:
    profile = commands.add_parser(
        "profile",
        help="measure the layers of a PyTorch model",
        description="Measure what each layer of a PyTorch model takes for one micro-batch: time of "
        "forward, input and weight gradient, bytes, floating-point operations.",
        epilog=(
            "examples, with a function `build` in mymodel.py that returns an nn.Sequential:\n"
            "  pipesim profile mymodel:build --input 8x128 --dtype int64 --output layers.csv\n"
            "  pipesim profile mymodel:build --input 32x512 --threads 1\n"
            "The loss is measured as the last layer if the function returns it, as in\n"
            "  return model, tokens, nn.functional.cross_entropy, labels\n"
            "It is called with what the model puts out, and with the targets if there are any.\n"
            "A config that takes the file, for `pipesim split` and `pipesim run`:\n"
            f"{LAYERS_CONFIG}"
            "Exit status: 0 done; 2 bad input, or PyTorch is not installed."
        ),
        formatter_class=RawDescriptionHelpFormatter,
    )
    profile.add_argument(
        "factory",
        metavar="MODULE:NAME",
        help="a function without arguments that returns the model or a list of its layers, alone "
        "or with a micro-batch, a loss and its targets: (model, batch), (model, batch, loss) or "
        "(model, batch, loss, targets); also from the current directory",
    )
    profile.add_argument(
        "--input",
        metavar="SHAPE",
        help="of a micro-batch of random numbers, such as 8x128; default: the function's",
    )
    profile.add_argument(
        "--dtype", default="float32", metavar="TYPE", help="of its numbers; default: float32"
    )
    profile.add_argument(
        "--vocabulary",
        type=int,
        default=100,
        metavar="N",
        help="whole numbers are tokens from 0 to N - 1; default: 100",
    )
    profile.add_argument(
        "--names",
        metavar="NAME,..",
        help="the submodules that are the layers, in forward order; default: those of an "
        "nn.Sequential",
    )
    profile.add_argument(
        "--repeats", type=int, default=20, metavar="N", help="timed repeats; default: 20"
    )
    profile.add_argument(
        "--warmup", type=int, default=3, metavar="N", help="repeats before these; default: 3"
    )
    profile.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads; default: as torch has it"
    )
    profile.add_argument("--output", metavar="FILE", help="write the layers: .csv")
    _json_flag(profile)


def _add_split(commands: Commands) -> None:
    split = commands.add_parser(
        "split",
        help="split the layers of a config into stages",
        description="Split the layers of a config into stages: the ways to do it side by side, "
        "and the stages of one of them. No rank holds more than its devices.memory_bytes.",
        epilog="The config has [layers] with a file, and [devices] with ranks unless it gives a "
        "split of its own. Exit status 2 if nothing fits.",
    )
    split.add_argument("config", metavar="CONFIG", help=".toml, .yaml or .json file")
    split.add_argument(
        "--by",
        choices=("layers", "param_bytes", "stash_bytes", "time", "config", "simulated"),
        default="simulated",
        help="whose stages to print; simulated: layers moved as long as the step gets shorter; "
        "default: simulated",
    )
    _set_flag(split)
    _json_flag(split)


def _add_check(commands: Commands) -> None:
    check = commands.add_parser(
        "check",
        help="check a schedule file",
        description=(
            "Check a CSV file of PyTorch's pipelining: every fault with its place, or what the "
            "schedule is."
        ),
        epilog="Exit status: 0 valid; 2 faults; 3 only that the order cannot go on.",
    )
    check.add_argument("file", metavar="FILE.csv", help="one row a rank, cells such as 2F0")
    check.add_argument(
        "--protocol", default="eager", metavar="NAME", help=f"not to hang under: {PROTOCOL_WORDS}"
    )
    check.add_argument(
        "--queue-capacity", type=int, metavar="N", help="messages between two stages; default: any"
    )
    _json_flag(check)


def _set_flag(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any key of the config, such as stages.forward_ms[3]=139.4; may be repeated; "
        "files are looked up from where the config is",
    )


def _memory_flag(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-memory-limit",
        action="append_const",
        dest="set",
        const="run.memory_limit=false",
        help="run it even if a rank goes over devices.memory_bytes",
    )


def _json_flag(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, numbers in full precision")
