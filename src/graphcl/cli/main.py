"""The entry point: runs a command and turns every failure into an exit code.

Exit codes: 0 done; 2 invalid input, reported in one line; 130 interrupted; 1 a bug. With `--json`,
a failure is also one JSON object on stdout: ``{"error": {"message": …, "exit_code": 2}}``.

A command is imported when it is called, so that `--help` does not wait for torch.
"""

import io
import json
import os
import re
import shlex
import sys
import traceback
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graphcl.cli.options import (
    TABLES,
    QuietOption,
    VerboseOption,
    as_command,
    common_options,
    is_verbose,
    panel,
    restored_verbosity,
    with_files,
)
from graphcl.cli.processes import Ending, announce, end, interrupts, leave, under_torchrun
from graphcl.errors import (
    GraphCLError,
    PartError,
    TableError,
    TrainingEndedError,
    command_running,
    option_of,
    why_failed,
)
from graphcl.files.remote import named

# The groups of commands in `graphcl --help`. The name of each command is also that of its module
# and its function; a test compares the summary with the first line of the function.
GROUPS = {
    "Data": {
        "check": "Say what would become of tables, or compare a store with its checksums.",
        "build": "Turn tables or any graph into a store: a graph on disk that every command takes.",
        "datasets": "List the paper's five datasets, which are present, and the gallery's graphs.",
    },
    "Train": {
        "train": "Train an encoder on a graph, or another system with --method, and write a run.",
        "tune": "Search for good hyperparameters with labels and write a recipe.",
        "evaluate": "Score a run by the probe: logistic regression on its frozen embeddings.",
    },
    "Use": {
        "embed": "Embed every node of a graph with a trained model; the graph may be one it never "
        "saw.",
        "predict": "Predict labels of nodes without one, with probabilities, from the labelled "
        "nodes.",
        "cluster": "Group similar nodes: k-means with the number of groups chosen, or HDBSCAN.",
        "links": "List likely links that the graph lacks, or score given pairs of nodes.",
        "neighbors": "List the nodes whose embeddings are most similar to a node's, by cosine.",
        "report": "Write one HTML file to send: a list to act on, groups, a map, and how they "
        "were made.",
    },
    "Operate": {
        "serve": "Serve a run over HTTP: embeddings, also of new nodes, similar nodes, labels, "
        "links.",
        "update": "Bring a run up to date with a graph that has changed, or go back to an earlier "
        "version.",
        "export": "Export a trained model: as ONNX, for torch.export, or a folder with a model "
        "card.",
    },
    "Research": {
        "compare": "Train systems on many graphs and score all alike: rows, a table and a picture.",
        "reproduce": "Reproduce the paper's tables and claims: ours, the paper's, and the "
        "difference.",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class InterruptedCommandError(Exception):
    """Ctrl-C or SIGTERM during a command that does not handle it itself."""


class LazyGroup(TyperGroup):
    """Lists a placeholder for each command; the command itself is imported when it runs."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; an interrupt raises an error, because typer would exit silently."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommandError from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the name of the command, the command and the remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help; plain where there is no terminal."""
        if not sys.stdout.isatty():
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Writes the plain list of commands, group by group."""
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()), col_max=12)


def load_command(name: str) -> Any:
    """Imports a command and returns it with `--quiet` and `--verbose` added."""
    from rich.markup import escape

    command = as_command(getattr(import_module(f"graphcl.cli.{name}"), name), name)
    command.callback = with_files(command.callback)
    added = {option.name: option for option in as_command(common_options).params}
    tables = [option for option in command.params if panel(option).startswith(TABLES)]
    for option in tables:  # all would not fit on a screen, and most graphs are no tables
        option.hidden = panel(option) != TABLES
    names = ["quiet", "verbose", *(["help_tables"] if tables else [])]
    command.params += [added[one] for one in names]
    command.params.sort(key=lambda option: option.name == "help")  # it comes last
    # A paragraph is one line, which the terminal breaks; examples are indented and stay.
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    described: list[Any] = [command, *command.params]
    for one in described:  # typer would take [nodes] for a style, and drop it
        one.help = escape(getattr(one, "help", None) or "")
    return command


def _placeholder() -> None:
    """Never runs: `resolve_command` replaces it with the command itself."""


# typer carries its own copy of click in some versions; this is ClickException in either.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="graphcl",
    cls=LazyGroup,
    help="Node embeddings of attributed graphs without labels (GraphCL, Hafidi et al. 2020).",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _group, _commands in GROUPS.items():
    for _name, _summary in _commands.items():
        app.command(_name, help=_summary, rich_help_panel=_group)(_placeholder)


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
    Ending.at_once = under_torchrun()  # which would take an abort for a failed training
    if not under_torchrun():
        end(run(sys.argv[1:]))
    # PyTorch's warnings about sockets are no help: what ends a command, the command says.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    end(leave(run(sys.argv[1:])) if announce() else 0)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code."""
    stderr = sys.stderr
    # SIGTERM ends a command as Ctrl-C does.
    with restored_verbosity(), interrupts(), command_running():
        code, message = _run(arguments)
    message = named(message)
    first = not under_torchrun() or os.environ.get("RANK", "0") == "0"
    if message and (first or code == 1):  # what is wrong with the input, one process reports
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
    except GraphCLError as error:  # whoever wrote a part of their own wants to see where
        shown = is_verbose() and isinstance(error, PartError)
        return 2, (traceback.format_exc() if shown else "") + _line(error)
    except TrainingEndedError as error:
        return error.code, str(error)
    except _CommandLineError as error:
        context = getattr(error, "ctx", None)
        return 2, _line(_usage(error), command=context.command_path if context else "graphcl")
    except (InterruptedCommandError, KeyboardInterrupt, typer.Abort):
        return 130, _line("interrupted")
    except SystemExit as error:
        # The reader closed our output (`graphcl datasets | head -1`); that is not an error.
        if isinstance(error.__context__, BrokenPipeError):
            return 0, ""
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return 2, _line(f"{name}{why_failed(error)}")
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            advice = "try --set mode=sampled, a smaller dim or batch_nodes, --device cpu"
            return 2, _line(f"out of GPU memory; {advice}")
        if isinstance(error, MemoryError):
            return 2, _line(f"out of memory: {error}")
        where = traceback.format_exc() if is_verbose() else ""
        return 1, where + _line(f"bug: {type(error).__name__}: {error} (--verbose shows where)")
    return (code if isinstance(code, int) else 0), ""


def _usage(error: Exception) -> str:
    """Returns what is wrong with a command line.

    Of an unknown option it says what is meant: a key of the recipe, or ``-k`` in place of ``--k``,
    as click compares long options alone.
    """
    message = str(getattr(error, "format_message", error.__str__)())
    context, name = getattr(error, "ctx", None), getattr(error, "option_name", None) or ""
    if not (context and name):
        return message
    from difflib import get_close_matches

    from graphcl.recipes import Recipe

    known = [one for option in context.command.params for one in option.opts]
    keys = list(Recipe.__dataclass_fields__)
    near = get_close_matches(name.lstrip("-").replace("-", "_"), keys, 1, 0.8)
    if near and "--set" in known:
        return f"No such option: {name}; keys of the recipe are given by --set {near[0]}=VALUE"
    short = f"-{name[2:]}"
    meant = name.startswith("--") and short in known
    return f"{message}; did you mean {short}?" if meant else message


def _line(message: object, *, command: str = "graphcl") -> str:
    return f"{command}: {' '.join(str(message).split())}"


def _table_message(error: TableError, arguments: list[str]) -> str:
    """Returns all problems with tables, and the command that settles them, ready to paste."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    words = [word for name, value in error.fix for word in (option_of(name), value)]
    command = shlex.join(["graphcl", *arguments, *words]) if words else ""
    if not command.isprintable() or len(command) > 2000:
        command = ""
    if len(lines) == 1:
        return f"graphcl: {lines[0]}" + (f"; try: {command}" if command else "")
    lines = [f"graphcl: {lines[0]}", *(f"  {line}" for line in lines[1:])]
    return "\n".join([*lines, *([f"try: {command}"] if command else [])])
