"""The command `pipesim profile`: the layers of a PyTorch model, measured."""

import os
import sys
import sysconfig
import warnings
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from pipesim.base.checks import check_count, check_size
from pipesim.base.errors import ConfigError
from pipesim.base.files import TABLE_ENDINGS
from pipesim.base.text import size_text, text_table
from pipesim.cli.flags import Commands, add_json_flag
from pipesim.cli.outputs import ProgressBar, check_output, tell, to_json

if TYPE_CHECKING:
    from pipesim.pipeline.layers import LayerProfile

EXAMPLE = "give a shape such as --input 8x128"


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


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    profile = commands.add_parser(
        "profile",
        help=words,
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
    add_json_flag(profile)
    profile.set_defaults(execute=profile_command)


def profile_command(arguments: Namespace) -> None:
    """Measure the layers of a model, print them, and write the file asked for."""
    from pipesim.files.layer_csv import write_layers

    check_output("--output", arguments.output, TABLE_ENDINGS[:1])
    for flag in ("repeats", "threads", "vocabulary"):
        if getattr(arguments, flag) is not None:
            check_count(f"--{flag}", getattr(arguments, flag))
    check_size("--warmup", arguments.warmup)
    if find_spec("torch") is None:
        raise ValueError("profile needs PyTorch: pip install 'pipesim[torch]'")
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads or threads)
    try:
        measured, notes = _measured(arguments)
    finally:
        torch.set_num_threads(threads)
    if arguments.output:
        write_layers(measured, arguments.output)
        tell(arguments.output)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.json:
        columns = measured.columns()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        print(to_json({"source": measured.source, "layers": rows}))
    else:
        print(_report(measured))


def _measured(arguments: Namespace) -> "tuple[LayerProfile, list[str]]":
    """Return the measured layer profile, and the texts of the warnings."""
    from pipesim.runtime import profile_layers

    model, sample, loss_fn, targets = _made(arguments)
    with ProgressBar("pass") as progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            measured = profile_layers(
                model,
                sample,
                names=None if arguments.names is None else arguments.names.split(","),
                loss_fn=loss_fn,
                targets=targets,
                repeats=arguments.repeats,
                warmup=arguments.warmup,
                progress=progress,
            )
        except TypeError as error:  # of a loss that is no single number
            raise ConfigError(arguments.factory, [str(error)]) from error
    return measured, [str(warning.message) for warning in caught]


def _made(arguments: Namespace) -> tuple[Any, Any, Any, Any]:
    """Return the model, its micro-batch, and the loss and its targets or None, all checked."""
    from torch import nn

    model, sample, loss_fn, targets = _parts(arguments.factory)
    modules = [model] if isinstance(model, nn.Module) else model
    if not isinstance(modules, Sequence) or not all(isinstance(x, nn.Module) for x in modules):
        raise ValueError(
            f"{arguments.factory} gives a {type(model).__name__}, not a module or a list of them, "
            "alone or as the first of (model, batch, loss, targets)"
        )
    if loss_fn is not None and not callable(loss_fn):
        raise ValueError(
            f"{arguments.factory} gives a {type(loss_fn).__name__} as the loss, not a function: "
            "give (model, batch, loss, targets)"
        )
    if arguments.names is None and not isinstance(model, Sequence | nn.Sequential | nn.ModuleList):
        raise ValueError(
            f"{arguments.factory}: {type(model).__name__} is no nn.Sequential: name its layers in "
            "forward order, --names embedding,blocks.0,..."
        )
    if arguments.input is not None:
        sample = _random(arguments, modules)
    elif sample is None:
        raise ValueError(f"{arguments.factory} gives no micro-batch with the model: {EXAMPLE}")
    return model, sample, loss_fn, targets


def _parts(path: str) -> tuple[Any, Any, Any, Any]:
    """Return the model, micro-batch, loss and targets of a factory; None for those not given."""
    from torch import nn

    made = found = _found(path)
    if not isinstance(found, nn.Module):
        try:
            made = found()
        except (Exception, SystemExit) as error:
            raise _failed(path, error) from error
    # A tuple with a module in second place is a list of layers: no micro-batch is a module.
    if isinstance(made, tuple) and 2 <= len(made) <= 4 and not isinstance(made[1], nn.Module):
        model, sample, loss_fn, targets = (*made, None, None)[:4]
        return model, sample, loss_fn, targets
    return made, None, None, None


def _found(path: str) -> Any:
    """Return the function or class that MODULE:NAME names."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"{path!r} names no model: write MODULE:NAME, such as mymodel:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{path}: there is no module {error.name!r}, neither installed nor in {os.getcwd()}"
            ) from error
        raise _failed(path, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    if not callable(getattr(found, name, None)):
        known = [key for key, value in vars(found).items() if callable(value) and key[0] != "_"]
        raise ValueError(
            f"{path}: {module_name} has no function {name!r}; it has {', '.join(known) or 'none'}"
        )
    return getattr(found, name)


def _failed(path: str, error: BaseException) -> ConfigError:
    """Return the error of a user's module, with the last line of the user's own code in it."""
    frames = extract_tb(error.__traceback__)
    libraries = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
    own = [frame for frame in frames[1:] if not frame.filename.startswith((*libraries, "<"))]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    reason = error.code if isinstance(error, SystemExit) else error
    return ConfigError(path, [f"{type(error).__name__}: {reason}{place}"])


def _random(arguments: Namespace, modules: Sequence[Any]) -> Any:
    """Return a micro-batch of random numbers, always the same, on the model's device."""
    import torch

    try:
        shape = [check_count("size", int(size)) for size in arguments.input.lower().split("x")]
    except ValueError:
        raise ValueError(f"--input {arguments.input}: is no shape; {EXAMPLE}") from None
    dtype = getattr(torch, arguments.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"--dtype {arguments.dtype}: unknown; such as float32, bfloat16, int64")
    generator = torch.Generator().manual_seed(0)
    try:
        if dtype.is_floating_point or dtype.is_complex:
            sample = torch.randn(shape, generator=generator).to(dtype)
        else:
            sample = torch.randint(arguments.vocabulary, shape, generator=generator).to(dtype)
    except RuntimeError as error:  # too large, or of a dtype that nothing can be done with
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"--input {arguments.input} --dtype {arguments.dtype}: cannot be made: {reason}"
        ) from None
    parameters = (parameter for module in modules for parameter in module.parameters())
    first = next(parameters, None)
    return sample if first is None else sample.to(first.device)


def _report(measured: "LayerProfile") -> str:
    columns = measured.columns()
    sizes = ("stash_bytes", "param_bytes", "output_bytes")
    total = measured.total_ms()
    table = {
        "layer": columns["layer"],
        "kind": columns["kind"],
        "forward ms": [f"{x:.3f}" for x in columns["forward_ms"]],
        "input grad ms": [f"{x:.3f}" for x in columns["input_grad_ms"]],
        "weight grad ms": [f"{x:.3f}" for x in columns["weight_grad_ms"]],
        "of all": [f"{x:.1%}" for x in total / total.sum()],
        "GFLOP": [f"{x:.4g}" for x in columns["forward_gflop"]],
        **{name.removesuffix("_bytes"): [size_text(x) for x in columns[name]] for name in sizes},
        "spread": columns["spread"],
    }
    note = (
        "stash: kept from forward to backward; spread: quartiles of the time, from the median\n"
        f"{total.sum():.3f} ms a micro-batch, {sum(columns['param_bytes']):,} bytes of parameters"
    )
    text = text_table(table, left=("layer", "kind", "spread"))
    return f"{measured.source}\n\n{text}\n{note}"
