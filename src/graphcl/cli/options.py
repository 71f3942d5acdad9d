"""Options that commands share, and what they print; imports no torch, so that `--help` is fast.

Results go to stdout and everything else goes to stderr. With `--quiet`, only errors are printed on
stderr. With `--verbose`, the steps inside a command are printed too, with their times, and so is
the traceback of a bug.
"""

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from graphcl.errors import RecipeError, TrainingWarning

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunGraphOption = Annotated[
    str | None,
    typer.Option(
        "--graph",
        help="The graph that the run was trained on, as train takes it. (default: the run's graph)",
    ),
]
TABLES = "Tables"  # the first options for reading tables; names of their other groups begin so
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a recipe key; repeatable.")
]


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Returns ``{"key": "value"}`` from the texts given to ``--set``."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set takes KEY=VALUE; got {setting!r}")
        pairs[key.strip()] = value.strip()
    return pairs


def print_result(value: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Prints `value` as one JSON object on stdout, or else `text`, if there is any."""
    if as_json or text:
        print(json.dumps(value, indent=2, allow_nan=False) if as_json else text)


def print_warnings(signs: Sequence[Mapping[str, str]]) -> None:
    """Prints signs that a training failed, on stderr; stdout is for results."""
    for sign in signs:
        print(f"warning: {sign['message']}\n  try {sign['advice']}", file=sys.stderr, flush=True)


def figures(graph: Any) -> dict[str, int]:
    """Returns the counts by which a graph is described."""
    names = ("nodes", "edges", "features", "classes")
    return {name: getattr(graph, f"num_{name}") for name in names}


_given = {"quiet": False, "verbose": False}  # the options of the command that is running


def _quiet(asked: bool) -> None:
    _given["quiet"] |= asked
    if asked:
        _silence()


def _verbose(asked: bool) -> None:
    _given["verbose"] |= asked
    if asked:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(relativeCreated)6d ms  %(message)s"))
        logger = logging.getLogger("graphcl")
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)


QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_quiet, expose_value=False, help="Only errors on stderr."
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=_verbose,
        expose_value=False,
        help="More on stderr: all that was read of tables, steps, times.",
    ),
]


def verbosity_options() -> list[Any]:
    """Returns `--quiet` and `--verbose` as parameters that can be added to a command."""

    def command(quiet: QuietOption = False, verbose: VerboseOption = False) -> None:
        """Never runs: only its options are used."""

    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    return [
        option
        for option in typer.main.get_command(alone).params
        if option.name in ("quiet", "verbose")
    ]


@contextlib.contextmanager
def restored_verbosity() -> Iterator[None]:
    """Restores, at the end of a command, what the options change: stderr, warnings and logging."""
    stderr, logger = sys.stderr, logging.getLogger("graphcl")
    before = logger.handlers[:], logger.level
    _given.update(quiet=False, verbose=False)
    with warnings.catch_warnings():
        # `train` prints these itself; commands that train many times would repeat them.
        warnings.simplefilter("ignore", TrainingWarning)
        try:
            yield
        finally:
            if sys.stderr is not stderr:
                sys.stderr.close()
                sys.stderr = stderr
            logger.handlers[:] = before[0]
            logger.setLevel(before[1])


def is_verbose() -> bool:
    """Returns whether to print the traceback of a bug."""
    return _given["verbose"] or bool(os.environ.get("GRAPHCL_DEBUG"))


def _silence() -> None:
    if getattr(sys.stderr, "name", "") != os.devnull:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 (closed by `restored_verbosity`)
    warnings.simplefilter("ignore")
