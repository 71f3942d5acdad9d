"""Imports a command only when it is called, so that `--help` does not wait for torch."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graphcl.cli._shared.verbosity import verbosity_options

# The name of each command, which is also that of its module and its function, and the summary that
# `graphcl --help` lists. A test compares the summary with the first line of the function.
COMMANDS = {
    "datasets": "List the paper's five datasets, which are present, and the gallery's graphs.",
    "build": "Turn tables or any graph into a store: a graph on disk that every command takes.",
    "train": "Train an encoder on a graph, or another system with --method, and write a run.",
    "embed": "Embed every node of a graph with a trained model; the graph may be one it never saw.",
    "evaluate": "Score a run by the probe: logistic regression on its frozen embeddings.",
    "compare": "Train systems on many graphs and score all alike: rows, a table and a picture.",
    "reproduce": "Reproduce the paper's tables and claims: ours, the paper's, and the difference.",
    "tune": "Search for good hyperparameters and write a recipe.",
    "predict": "Predict labels of nodes without one, with probabilities, from the labelled nodes.",
    "cluster": "Group similar nodes: k-means with the number of groups chosen, or HDBSCAN.",
    "links": "List likely links that the graph lacks, or score given pairs of nodes.",
    "report": "Write one HTML file that shows a run: graph, training, map of embeddings, scores.",
    "serve": "Serve a run over HTTP: embeddings, also of new nodes, similar nodes, labels, links.",
    "update": "Bring a run up to date with a graph that has changed, or go back to an earlier "
    "version.",
    "export": "Export a trained model: as ONNX, for torch.export, or a folder with a model card.",
    "check": "Compare a store with its checksums, or say what would become of tables.",
    "neighbors": "List the nodes whose embeddings are most similar to a node's, by cosine.",
}


TABLES = "Tables"  # how the names of the groups of options for reading tables begin
ABOUT_TABLES = ("build", "check")  # commands whose `--help` shows them


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


def load_command(name: str) -> Any:
    """Imports a command and returns it with `--quiet` and `--verbose` added."""
    from rich.markup import escape

    function = getattr(import_module(f"graphcl.cli.{name}"), name)
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command(name, context_settings={"help_option_names": ["-h", "--help"]})(function)
    command = typer.main.get_command(alone)
    help_last = [option for option in command.params if option.name == "help"]
    tables = [option for option in command.params if _panel(option).startswith(TABLES)]
    command.params = [
        *(option for option in command.params if option not in help_last),
        *verbosity_options(),
        *([_tables_help(tables)] if tables and name not in ABOUT_TABLES else []),
        *help_last,
    ]
    described: list[Any] = [command, *command.params]
    for one in described:  # typer would take [nodes] for a style, and drop it
        one.help = escape(getattr(one, "help", None) or "")
    return command


def _panel(option: Any) -> str:
    return str(getattr(option, "rich_help_panel", None) or "")


def _tables_help(tables: list[Any]) -> Any:
    """Hides the options of tables from `--help`; returns `--help-tables`, which shows them alone.

    Together they would not fit on a screen, and most graphs are no tables.
    """

    def show(ctx: Any, _: Any, asked: bool) -> None:
        if not asked:
            return
        for option in ctx.command.params:
            option.hidden = option not in tables
        ctx.command.help = "How tables are read: columns, labels, missing values."
        print(ctx.get_help())
        raise typer.Exit

    def command(
        help_tables: Annotated[
            bool,
            typer.Option(
                "--help-tables", is_eager=True, expose_value=False, help="Show options of tables."
            ),
        ] = False,
    ) -> None:
        """Never runs: only its option is used."""

    for option in tables:
        option.hidden = True
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    found = next(one for one in typer.main.get_command(alone).params if "--help-tables" in one.opts)
    found.callback = show
    return found


def register(app: typer.Typer) -> None:
    """Adds a placeholder for every command to `app`."""
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(_placeholder)


def _placeholder() -> None:
    """Never runs: `resolve_command` replaces it with the command itself."""
