"""The entry point: runs a command and turns every failure into an exit code.

Exit codes: 0 done; 2 invalid input, reported in one line; 130 interrupted; 1 a bug. With `--json`,
a failure is also one JSON object on stdout: ``{"error": {"message": …, "exit_code": 2}}``.
"""

import io
import json
import os
import shlex
import sys
import traceback
from typing import Annotated

import typer

from graphcl.cli._shared.interrupts import Ending, end, interrupts
from graphcl.cli._shared.lazy import InterruptedCommandError, LazyGroup, register
from graphcl.cli._shared.verbosity import (
    QuietOption,
    VerboseOption,
    is_verbose,
    restored_verbosity,
)
from graphcl.errors import GraphCLError, PartError, TableError, TrainingEndedError

# typer carries its own copy of click in some versions; this is ClickException in either.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="graphcl",
    cls=LazyGroup,
    help="Node embeddings of attributed graphs without labels (GraphCL, Hafidi et al. 2020).",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
register(app)


def _version(asked: bool) -> None:
    if asked:
        from graphcl import __version__

        print(f"graphcl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Accepts the options that come before a command."""


def main() -> None:
    """Runs the command line and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ± must not fail where it cannot be encoded
            stream.reconfigure(errors="backslashreplace")
    Ending.at_once = _under_torchrun()  # which would take an abort for a failed training
    if not _under_torchrun():
        end(run(sys.argv[1:]))
    # PyTorch's warnings about sockets are no help: what ends a command, the command says.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from graphcl.cli._shared import launch

    end(launch.leave(run(sys.argv[1:])) if launch.announce() else 0)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code."""
    stderr = sys.stderr
    with restored_verbosity(), interrupts():  # SIGTERM ends a command as Ctrl-C does
        code, message = _run(arguments)
    if message:
        print(message, file=stderr)
        if "--json" in arguments:
            about = {"message": message.splitlines()[-1], "exit_code": code}
            print(json.dumps({"error": about}, indent=2))
    return code


def _run(arguments: list[str]) -> tuple[int, str]:
    """Returns the exit code, and the message that describes the failure, if any."""
    try:
        code = app(args=arguments or ["--help"], prog_name="graphcl", standalone_mode=False)
        sys.stdout.flush()
    except TableError as error:
        return 2, _table_message(error, arguments)
    except PartError as error:  # whoever wrote the part wants to see where
        code, message = _failure(str(error))
        return code, (traceback.format_exc() if is_verbose() else "") + message
    except GraphCLError as error:
        return _failure(str(error))
    except TrainingEndedError as error:
        return error.code, str(error)
    except _CommandLineError as error:
        context = getattr(error, "ctx", None)
        message = getattr(error, "format_message", error.__str__)() + _short_option(error)
        return _failure(message, command=context.command_path if context else "")
    except (InterruptedCommandError, KeyboardInterrupt, typer.Abort):
        return _failure("interrupted", code=130)
    except SystemExit as error:
        # The reader closed our output (`graphcl datasets | head -1`); that is not an error.
        if isinstance(error.__context__, BrokenPipeError):
            return 0, ""
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _failure(f"{name}{error.strerror or error}")
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            advice = "try --set mode=sampled, a smaller dim or batch_nodes, --device cpu"
            return _failure(f"out of GPU memory; {advice}")
        where = traceback.format_exc() if is_verbose() else ""
        summary = " ".join(f"{type(error).__name__}: {error}".split())
        code, message = _failure(f"bug: {summary} (--verbose shows where)", code=1)
        return code, where + message
    return (code if isinstance(code, int) else 0), ""


def _short_option(error: Exception) -> str:
    """Returns ``; did you mean -k?`` where ``--k`` was given: click compares long options alone."""
    context, name = getattr(error, "ctx", None), getattr(error, "option_name", None) or ""
    short = f"-{name[2:]}"
    known = [one for option in context.command.params for one in option.opts] if context else []
    return f"; did you mean {short}?" if name.startswith("--") and short in known else ""


def _failure(message: str, *, command: str = "", code: int = 2) -> tuple[int, str]:
    others = _under_torchrun() and os.environ.get("RANK", "0") != "0"
    if others and code != 1:  # the first process reports it
        return code, ""
    return code, f"{command or 'graphcl'}: {' '.join(message.split())}"


def _table_message(error: TableError, arguments: list[str]) -> str:
    """Returns all problems with tables, and the command that settles them, ready to paste."""
    if _under_torchrun() and os.environ.get("RANK", "0") != "0":
        return ""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    command = shlex.join(["graphcl", *arguments, *error.fix]) if error.fix else ""
    if not command.isprintable() or len(command) > 2000:
        command = ""
    if len(lines) == 1:
        return f"graphcl: {lines[0]}" + (f"; try: {command}" if command else "")
    lines = [f"graphcl: {lines[0]}", *(f"  {line}" for line in lines[1:])]
    return "\n".join([*lines, *([f"try: {command}"] if command else [])])


def _under_torchrun() -> bool:
    # A copy of `graphcl.distributed.launched`, whose module imports torch.
    rendezvous = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return "TORCHELASTIC_RUN_ID" in os.environ or all(one in os.environ for one in rendezvous)
