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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from graphcl.errors import ParameterError, RecipeError, TrainingWarning
from graphcl.files.atomic import refuse_remote
from graphcl.files.remote import local, named

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
        print(named(json.dumps(value, indent=2, allow_nan=False) if as_json else text))


def print_warnings(signs: Sequence[Mapping[str, str]]) -> None:
    """Prints signs that a training failed, on stderr; stdout is for results."""
    for sign in signs:
        print(f"warning: {sign['message']}\n  try {sign['advice']}", file=sys.stderr, flush=True)


_INPUTS = {"graph", "graphs", "nodes", "edges", "tags", "vectors", "vector_ids", "labels", "pairs"}
_INPUTS |= {"embeddings", "new", "remove_nodes", "remove_edges", "recipe"}


def with_files(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command to which the files that its options name are fetched first."""

    def fetching(**given: Any) -> None:
        for name, value in given.items():
            if name in ("out", "run"):  # what is written
                refuse_remote(value, ParameterError)
            elif name in _INPUTS:
                given[name] = [*map(local, value)] if isinstance(value, list) else local(value)
        command(**given)

    return fetching


_given = {"quiet": False, "verbose": False}  # the options of the command that is running


def _quiet(asked: bool) -> None:
    _given["quiet"] |= asked
    if asked and getattr(sys.stderr, "name", "") != os.devnull:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 (closed by `restored_verbosity`)
        warnings.simplefilter("ignore")


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


def _show_tables(ctx: typer.Context, asked: bool) -> None:
    if not asked:
        return
    for option in ctx.command.params:
        setattr(option, "hidden", not panel(option).startswith(TABLES))  # noqa: B010
    ctx.command.help = "How tables are read: columns, labels, missing values."
    print(ctx.get_help())
    raise typer.Exit


def panel(option: Any) -> str:
    """Returns the group of an option in the help."""
    return str(getattr(option, "rich_help_panel", None) or "")


def common_options(
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    help_tables: Annotated[
        bool,
        typer.Option(
            "--help-tables",
            callback=_show_tables,
            is_eager=True,
            expose_value=False,
            help="Show all options of tables.",
            rich_help_panel=TABLES,
        ),
    ] = False,
) -> None:
    """Never runs: its options are added to commands."""


def as_command(function: Callable[..., None], name: str | None = None) -> Any:
    """Returns a function as a command of the command line."""
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command(name, context_settings={"help_option_names": ["-h", "--help"]})(function)
    return typer.main.get_command(alone)


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
