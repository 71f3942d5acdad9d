"""`--quiet` and `--verbose`: how much a command says on stderr.

Results go to stdout, everything else to stderr. Quiet, stderr keeps errors alone. Verbose, it also
gets the steps inside a command with their times, and where a bug happened.
"""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer

_chosen = {"quiet": False, "verbose": False}


def _quiet(asked: bool) -> None:
    _chosen["quiet"] |= asked
    if asked:
        _silence()


def _verbose(asked: bool) -> None:
    _chosen["verbose"] |= asked
    if asked:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(relativeCreated)6d ms  %(message)s"))
        logger = logging.getLogger("graphcl")
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)


QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_quiet, expose_value=False, help="Errors alone on stderr."
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_verbose, expose_value=False, help="More on stderr."),
]


def volume_options() -> list[Any]:
    """Returns both options, to be added to a command."""

    def command(quiet: QuietOption = False, verbose: VerboseOption = False) -> None:
        """Carries the options."""

    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    return [
        option
        for option in typer.main.get_command(alone).params
        if option.name in ("quiet", "verbose")
    ]


@contextlib.contextmanager
def volume() -> Iterator[None]:
    """Keeps what the options change within one command: stderr, warnings and logging."""
    stderr, logger = sys.stderr, logging.getLogger("graphcl")
    before = logger.handlers[:], logger.level
    _chosen.update(quiet=False, verbose=False)
    with warnings.catch_warnings():
        try:
            yield
        finally:
            if sys.stderr is not stderr:
                sys.stderr.close()
                sys.stderr = stderr
            logger.handlers[:] = before[0]
            logger.setLevel(before[1])


def is_verbose() -> bool:
    """Says whether a bug is to be shown with its traceback."""
    return _chosen["verbose"] or bool(os.environ.get("GRAPHCL_DEBUG"))


def _silence() -> None:
    if getattr(sys.stderr, "name", "") != os.devnull:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 (closed by `volume`)
    warnings.simplefilter("ignore")
