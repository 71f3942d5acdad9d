"""Commands that are imported when they are called: `--help` must not wait for torch."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from graphcl.cli._shared.verbosity import verbosity_options

# Each command: the module of `graphcl.cli` that holds the function of the same name, and the
# summary that `graphcl --help` lists (a test holds it equal to the function's first line).
COMMANDS = {
    "datasets": "List the paper's five datasets, their figures in Table 1, and which are here.",
    "build": "Turn tables into a store: a graph on disk that every command takes.",
    "train": "Train an encoder on a graph, or another system with --method, and write a run.",
    "embed": "Embed every node of a graph with a trained model; the graph may be one it never saw.",
    "evaluate": "Score a run by the probe: logistic regression on its frozen embeddings.",
    "reproduce": "Reproduce the paper's tables and claims: ours, the paper's, and the difference.",
    "tune": "Search the paper's ranges for good hyperparameters and write a recipe.",
    "report": "Write one HTML file that shows a run: graph, training, map of embeddings, scores.",
    "check": "Compare every byte of a store with its checksums, and scan its structure.",
    "neighbors": "List the nodes whose embeddings are most similar to a node's, by cosine.",
}


class InterruptedCommandError(Exception):
    """Ctrl-C or SIGTERM, where a command has nothing of its own to say about it."""


class LazyGroup(TyperGroup):
    """Lists stand-ins with a summary; the command itself is imported when it is to run."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; typer itself would end without a word where it is interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommandError from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the name, the command and the arguments left."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else command, rest


def load_command(name: str) -> Any:
    """Imports a command and returns it with the options that all share."""
    function = getattr(import_module(f"graphcl.cli.{name}"), name)
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command(name, context_settings={"help_option_names": ["-h", "--help"]})(function)
    command = typer.main.get_command(alone)
    help_last = [option for option in command.params if option.name == "help"]
    command.params = [
        *(option for option in command.params if option not in help_last),
        *verbosity_options(),
        *help_last,
    ]
    return command


def register(app: typer.Typer) -> None:
    """Gives `app` a stand-in for every command."""
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(_stand_in)


def _stand_in() -> None:
    """Never runs: `resolve_command` puts the command itself in its place."""
