"""Options for reading tables, shared by every command that reads some."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any

import typer

from graphcl.tabular.options import FEATURES, MISSING, TableOptions, TableReport

_PANEL = "Tables"


def _option(kind: Any, text: str, *names: str, metavar: str | None = None) -> Any:
    return Annotated[kind, typer.Option(*names, help=text, metavar=metavar, rich_help_panel=_PANEL)]


_COLUMN, _COLUMNS = str | None, list[str]
_OPTIONS: dict[str, Any] = {
    "nodes": _option(
        str | None, "Nodes: .csv, .tsv, .parquet, .npy, .npz, FILE:TABLE or an SQL query."
    ),
    "source_column": _option(_COLUMN, "Column of the edges' source nodes. (default: guessed)"),
    "target_column": _option(_COLUMN, "Column of the edges' target nodes. (default: guessed)"),
    "weight": _option(_COLUMN, "Column of positive edge weights. (default: unweighted)"),
    "id_column": _option(_COLUMN, "Column of the nodes' ids. (default: guessed)"),
    "label": _option(
        _COLUMNS,
        "Column of the nodes' classes; only the probe uses it. Repeatable, for several labels.",
        metavar="COLUMN",
    ),
    "label_separator": _option(
        str | None, "What stands between the labels in a cell, such as '|'.", metavar="TEXT"
    ),
    "split": _option(_COLUMN, "Column that says train, val or test."),
    "one_hot": _option(_COLUMNS, "A column of categories; repeatable.", metavar="COLUMN"),
    "text": _option(_COLUMNS, "A column of texts to read; repeatable.", metavar="COLUMN"),
    "date": _option(_COLUMNS, "A column of dates; repeatable.", metavar="COLUMN"),
    "ignore": _option(_COLUMNS, "Leave a column out; repeatable.", metavar="COLUMN"),
    "missing": _option(
        str,
        f"Missing values: {MISSING[1]} them, or fill in {' or '.join(MISSING[2:])}; auto: the mean "
        "where few are missing.",
    ),
    "strict": _option(bool, "Guess nothing: refuse what is not said by an option.", "--strict"),
    "add_missing_nodes": _option(
        bool, "Give zero features to nodes that appear only in edges.", "--add-missing-nodes"
    ),
    "features": _option(
        str, f"Features: {', '.join(FEATURES)}; structural ones are computed from the edges."
    ),
    "header": _option(bool | None, "Whether the first line holds column names. (default: guessed)"),
}


def takes_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `TableOptions` to a command, which receives them as `tables`.

    typer builds a command line from a signature, so the wrapper's signature contains both.
    """
    own = inspect.signature(command)
    mine = [parameter for name, parameter in own.parameters.items() if name != "tables"]
    added = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=list(one.default) if isinstance(one.default, tuple) else one.default,
            annotation=_OPTIONS[one.name],
        )
        for one in fields(TableOptions)
        if one.name in _OPTIONS
    ]

    @wraps(command)
    def with_tables(**given: Any) -> None:
        chosen = {parameter.name: given.pop(parameter.name) for parameter in added}
        command(**given, tables=TableOptions(**chosen))

    with_tables.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*mine, *added)
        ]
    )
    hints = {parameter.name: parameter.annotation for parameter in (*mine, *added)}
    with_tables.__annotations__ = hints | {"return": None}
    return with_tables


def as_arguments(tables: TableOptions) -> list[str]:
    """Returns the command-line arguments that give these options."""
    words = []
    for name, value in tables.given().items():
        option = "--" + name.replace("_", "-")
        if name not in _OPTIONS:  # what the command line does not take, the run says
            continue
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        else:
            each = value if isinstance(value, tuple) else (value,)
            words += [word for one in each for word in (option, str(one))]
    return words


def print_notes(report: TableReport) -> None:
    """Prints on stderr what was guessed, merged, removed and filled in."""
    for line in report.notes:
        print(line, file=sys.stderr)
