"""Flags that several commands have, each with one meaning."""

from argparse import ArgumentParser, _SubParsersAction
from typing import TypeAlias

Commands: TypeAlias = "_SubParsersAction[ArgumentParser]"

PROTOCOL_NAMES = ("eager", "rendezvous", "odd_even", "paired", "posted", "posted_blocking")
PROTOCOL_WORDS = f"{', '.join(PROTOCOL_NAMES)}; default: eager"


def add_config_argument(parser: ArgumentParser) -> None:
    """Add the argument CONFIG."""
    parser.add_argument("config", metavar="CONFIG", help=".toml, .yaml or .json file")


def add_set_flag(parser: ArgumentParser) -> None:
    """Add --set."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any key of the config, such as stages.forward_ms[3]=139.4; may be repeated; "
        "files are looked up from where the config is",
    )


def add_memory_flag(parser: ArgumentParser) -> None:
    """Add --no-memory-limit."""
    parser.add_argument(
        "--no-memory-limit",
        action="append_const",
        dest="set",
        const="run.memory_limit=false",
        help="run it even if a rank goes over devices.memory_bytes",
    )


def add_window_flag(parser: ArgumentParser) -> None:
    """Add --window."""
    parser.add_argument(
        "--window",
        metavar="BEGIN:END",
        help="the part of the run that an .html chart shows, in ms; default: all, or as much as a "
        "browser takes",
    )


def add_json_flag(parser: ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, numbers in full precision")
